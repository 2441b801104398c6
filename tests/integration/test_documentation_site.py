"""The documentation site: its pages, its navigation, and what makes its build fail."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from tests.helpers import ROOT
from tools import documentation


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    out = tmp_path / "site"
    built = subprocess.run(
        [sys.executable, "-m", "tools.documentation", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (built.returncode, built.stderr) == (0, "")
    commands = out / "docs" / "reference" / "commands"
    assert {page.stem for page in commands.glob("*.html")} >= set(cli.COMMANDS)
    front = (out / "index.html").read_text()
    assert re.findall(r'<span class="caption-text">(\w[^<]*)</span>', front) == [
        "Tutorials",
        "How to",
        "Reference",
        "Explanation",
        "Generated tables",
    ]
    assert "bisect" in (out / "searchindex.js").read_text()
    assert 'href="../../../overview/index.html"' in (commands / "audit.html").read_text()
    overview = out / "overview"
    for page in ("index.html", "cases/vllm-17173.html", "releases/0.8.4.html"):
        home = "../" * page.count("/") + "../index.html"
        assert f'<a href="{home}">Documentation</a>' in (overview / page).read_text()


def test_every_page_of_the_index_is_in_the_navigation_once() -> None:
    text = (ROOT / "docs" / "README.md").read_text()
    places = [
        line
        for part in documentation.navigation(text, "docs")
        for line in part.splitlines()
        if line.startswith("/")
    ]
    assert len(places) == len(set(places)) > 40
    assert all((ROOT / f"{place[1:]}.md").is_file() for place in places)


def test_links_to_files_that_are_no_pages_are_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documentation, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("[code](tool.py), [page](other.md#part), [part](#part), [web](https://a.test)")
    assert documentation._without_outside_links(page) == (
        "code, [page](other.md#part), [part](#part), [web](https://a.test)"
    )
