"""On other systems than Linux, commands that start engines say so, and the others work."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.util import paths


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")


LINUX_ONLY = {name for name, entry in cli.COMMANDS.items() if entry.starts}


@pytest.mark.parametrize("command", sorted(LINUX_ONLY))
def test_commands_that_start_engines_are_for_linux_only(
    command: str, elsewhere: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command]) == 2
    assert f"{command}: Linux only" in capsys.readouterr().err


def test_their_help_and_the_other_commands_work(
    elsewhere: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", "--help"]) == 0
    assert cli.main(["list"]) == 0
    assert not {"list", "show", "audit", "explain", "report"} & LINUX_ONLY


def test_without_owners_of_files_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "_HAS_OWNERS", False)
    os.chmod(tmp_path, stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO)
    paths.check_writers(tmp_path)
    assert paths.is_private(tmp_path)
