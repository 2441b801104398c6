"""An invalid case file is named, and does not block commands that concern other cases."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from tests.helpers.cases import CaseFile
from tests.unit.cli.test_cli import PROBE, TEST

GOOD = CaseFile(affected="<0.8.5", old=(), new=())
PROBLEM = "broken/case.toml: devices[0] = 'tpu'"


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    """The valid case ``demo`` and the invalid case ``broken``."""
    root = GOOD.write(tmp_path / "cases").directory.parent
    (root / "broken").mkdir()
    (root / "broken" / "case.toml").write_text(
        dataclasses.replace(GOOD, id="broken", devices=("tpu",)).text()
    )
    return root


def regress(cases: Path, *arguments: object) -> int:
    return cli.main(["--cases", str(cases), *map(str, arguments)])


def test_list_shows_the_valid_cases_and_names_the_invalid_file(
    cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert regress(cases, "list") == 2
    captured = capsys.readouterr()
    assert [line.split()[0] for line in captured.out.splitlines()] == ["id", "demo"]
    assert captured.err.count(PROBLEM) == 1
    assert regress(cases, "list", "--format", "json") == 2
    assert [case["id"] for case in json.loads(capsys.readouterr().out)] == ["demo"]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["show", "demo"], 0),
        (["audit", "vllm.txt"], 1),
        (["bisect", "demo", "--good", "1"], 2),
        (["judge", "demo"], 2),
    ],
)
def test_commands_that_concern_other_cases_go_on_with_a_warning(
    cases: Path,
    arguments: list[str],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "vllm.txt").write_text("vllm==0.8.4\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("pytest_vllm_regress.history.bisect.releases", lambda package: ())
    assert regress(cases, *arguments) == status
    captured = capsys.readouterr()
    assert f"warning: invalid case file, left out: {cases}/{PROBLEM}" in captured.err
    assert "no such case" not in captured.err


def test_run_of_another_case_is_not_blocked(
    cases: Path,
    tmp_path: Path,
    fixed_target: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    (cases / "demo" / "test_demo.py").write_text(TEST)
    (cases / "demo" / "probe.py").write_text(PROBE)
    assert regress(cases, "run", "demo", "--env", fixed_target) == 0
    assert PROBLEM in capfd.readouterr().err


def test_an_invalid_case_cannot_be_used_itself(
    cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert regress(cases, "show", "broken") == 2
    error = capsys.readouterr().err
    assert "no such case: 'broken'" in error
    assert PROBLEM in error


@pytest.mark.parametrize("command", [["run"], ["validate", "--all"], ["matrix"]])
def test_commands_that_concern_all_cases_refuse_an_invalid_file(
    cases: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert regress(cases, *command) == 2
    assert PROBLEM in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["list"], ["audit", "vllm==0.8.4"], ["compare", "0.8.4", "0.9.2"]]
)
def test_a_directory_without_a_case_gives_no_all_clear(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert regress(tmp_path, *command) == 2
    captured = capsys.readouterr()
    assert f"{tmp_path}: no case (<slug>/case.toml) in it" in captured.err
    assert captured.out == ""


def test_new_writes_the_first_case_into_an_empty_directory(tmp_path: Path) -> None:
    assert (
        regress(tmp_path, "new", "1", "--affected-env", "vllm-0.8.4", "--fixed-env", "vllm-0.8.5")
        == 0
    )
    assert regress(tmp_path, "validate", "--check", "vllm-1") == 1  # its test is not written yet


@pytest.mark.parametrize("python", ["banana", "2.7", "3", "3.11.7"])
def test_drift_refuses_what_is_no_python(python: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: uv's refusal of such a value was taken for a failure of the release."""
    assert cli.main(["survey", "drift", "--releases", "0.8.5", "--python", python]) == 2
    assert (
        f"--python {python!r}: allowed is a minor version of Python, such as 3.11"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cases", "", "list"], "the argument after --cases is empty"),
        (["--log-file=", "list"], "the argument after --log-file is empty"),
        (["run", "--out", " ", "vllm-17173"], "the argument after --out is empty"),
        (
            ["survey", "drift", "--releases", "0.8.5", "--disk="],
            "the argument after --disk is empty",
        ),
        (["uses", ""], "an argument is empty"),
        (["report", ""], "an argument is empty"),
    ],
)
def test_an_empty_argument_is_neither_the_working_directory_nor_a_default(
    arguments: list[str],
    words: str,
    cases: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(cases)
    assert cli.main(arguments) == 2
    assert words in capsys.readouterr().err
