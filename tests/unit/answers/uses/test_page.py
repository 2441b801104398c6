"""The page of the command shows what the command prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from tests.helpers import ROOT

PAGE = (ROOT / "docs" / "how-to" / "which-releases.md").read_text()


def test_the_example_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = re.findall(r"```(?:toml|python|bash)\n(# (\S+)\n.*?)```", PAGE, re.DOTALL)
    assert len(files) == 3
    for text, name in files:
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["uses"]) == 1
    expected, _ = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)  # the second is of --run
    assert capsys.readouterr().out == expected, (
        "the history or the command changed: write the page's output anew"
    )
