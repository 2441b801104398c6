"""The README of one case never stops the site of all: what is wrong with it is named, on the page and
in the output."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_vllm_regress.cli import main
from pytest_vllm_regress.output.pages.documents import MAX_DOCUMENT
from tests.helpers import ROOT

IDS = ("vllm-17173", "vllm-16643")
BROKEN: dict[str, str] = {
    "page": "[x](missing.md)",
    "place": "[x](#nowhere)",
    "place in another case": f"[x](../{IDS[1]}/README.md#nowhere)",
    "place in the overview": "[x](../../docs/README.md#nowhere)",
    "odd": "[x](<a%00b>) [y](<%ff/..>) [z](//) [a](mailto) ![i](none.png)",
}
UNREADABLE: dict[str, Callable[[Path], object]] = {
    "large": lambda path: path.write_text("x" * (MAX_DOCUMENT + 1)),
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "link": lambda path: path.symlink_to("/etc/hostname"),
    "loop": lambda path: path.symlink_to(path.name),
    "large file": lambda path: path.write_text("[x](probe.bin)"),
}


@pytest.fixture
def cases(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Two cases, alone or in a project with documents."""
    folder = tmp_path / getattr(request, "param", "project") / "cases"
    for case in IDS:
        shutil.copytree(ROOT / "cases" / case, folder / case)
    (folder / IDS[0] / "README.md").unlink()
    return folder


def site(cases: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Path]:
    """Write the site of these cases. Those of a project are its own, with its documents."""
    project = cases.parent
    if project.name == "project":
        (project / "docs").mkdir()
        (project / "docs" / "README.md").write_text("# Documents\n")
        monkeypatch.setattr("pytest_vllm_regress.cli.site.shipped", lambda name: project / name)
    return main(["--cases", str(cases), "site", "--out", str(project / "site")]), project / "site"


@pytest.mark.parametrize(
    ("cases", "name"),
    [*(("project", name) for name in BROKEN), ("own", "place"), ("own", "page")],
    indirect=["cases"],
)
def test_links_that_lead_nowhere_are_named(
    cases: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (cases / IDS[0] / "README.md").write_text(f"The failure.\n\n{BROKEN[name]}\n")
    status, pages = site(cases, monkeypatch)
    printed = capsys.readouterr()
    assert status == 0, printed.err
    page = (pages / "cases" / f"{IDS[0]}.html").read_text()
    assert "The failure." in page
    # Without the documents of a project, links to other things than cases are left out.
    if cases.parent.name == "project" or name in ("place", "place in another case"):
        assert "lead nowhere" in page
        assert f"note: cases/{IDS[0]}.html: " in printed.err
    other = (pages / "cases" / f"{IDS[1]}.html").read_text()
    assert "lead nowhere" not in other and "is not shown" not in other


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_readme_that_cannot_be_read_is_named(
    cases: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    UNREADABLE[name](cases / IDS[0] / "README.md")
    (cases / IDS[0] / "probe.bin").write_bytes(b"")
    os.truncate(cases / IDS[0] / "probe.bin", MAX_DOCUMENT + 1)
    status, pages = site(cases, monkeypatch)
    printed = capsys.readouterr()
    assert status == 0, printed.err
    page = (pages / "cases" / f"{IDS[0]}.html").read_text()
    assert "The README of this case is not shown" in page
    assert IDS[0] in printed.err
    assert (pages / "cases" / f"{IDS[1]}.html").exists()


def test_nested_and_repeated_signs_take_no_disproportionate_time(
    cases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["> " * 20_000, "- " * 20_000, "[" * 50_000, "`" * 50_000 + "a", "*a_" * 20_000]
    (cases / IDS[0] / "README.md").write_text("\n\n".join(texts))
    began = time.process_time()
    assert site(cases, monkeypatch)[0] == 0
    assert time.process_time() - began < 30
