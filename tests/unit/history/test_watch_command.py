"""``vllm-regress watch`` with a listed release and simulated runs."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.version import Version

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.cli import watch
from pytest_vllm_regress.cli.context import Invocation
from pytest_vllm_regress.history.watch import SeenReleases
from pytest_vllm_regress.runner.journal import Journal
from pytest_vllm_regress.runner.run import RunRequest
from tests.helpers.cases import CaseFile
from tests.unit.history.test_corrections import LISTED, Outcomes, Runs

Command = Callable[..., int]


@pytest.fixture
def cases(tmp_path: Path) -> tuple[Case, ...]:
    folder = tmp_path / "cases"
    return (
        CaseFile("back", affected=">=0.7,<0.8.5", old=("vllm-0.8.4",), new=("vllm-0.8.5",)).write(
            folder
        ),
        CaseFile("gone", affected=">=0.15", old=("vllm-0.33.0",), new=()).write(folder),
    )


@pytest.fixture
def runs() -> Runs:
    """Both cases surprise on vLLM 0.34.0."""
    outcomes: Outcomes = {
        ("back", "vllm-0.34.0"): Verdict.REGRESSED,
        ("gone", "vllm-0.34.0"): Verdict.UNEXPECTEDLY_FIXED,
        ("gone", "vllm-0.33.0"): Verdict.REPRODUCED,
    }
    return Runs(outcomes)


@pytest.fixture
def command(
    tmp_path: Path,
    cases: tuple[Case, ...],
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    listed: list[str],
) -> Command:
    """Run ``watch --state STATE`` on the cases, and return the exit code."""

    def run_batches(request: RunRequest) -> object:
        assert isinstance(request.journal, Journal)
        outcome = runs(request.batches)
        request.journal.directory.mkdir(parents=True, exist_ok=True)
        return outcome

    def releases(package: str) -> tuple[Version, ...]:
        listed.append(package)
        return LISTED[package]

    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watch, "releases", releases)
    monkeypatch.setattr(watch, "run_batches", run_batches)
    monkeypatch.setattr(Invocation, "prepare", lambda self, batches, options, show: None)
    return lambda *arguments: cli.main(
        ["--cases", "cases", "watch", "--state", "state.jsonl", *arguments]
    )


@pytest.fixture
def listed() -> list[str]:
    """Packages whose releases were looked up."""
    return []


def state() -> tuple[set[str], tuple[str, ...]]:
    """Return the releases that need no look, and those whose edits are left to write."""
    with contextlib.closing(SeenReleases(Path("state.jsonl"))) as seen:
        return seen.names, seen.unapplied


def journals() -> list[Path]:
    return [path for path in Path("cache/watch").iterdir() if path.is_dir()]


def test_changes_are_shown_and_a_second_look_on_the_day_does_nothing(
    command: Command, runs: Runs, listed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command() == 1
    output = capsys.readouterr().out
    assert re.search(r"^REGRESSED +back +vllm 0\.34\.0 +sim +one result$", output, re.MULTILINE)
    assert '+vllm = ">=0.7,<0.8.5 || >=0.34"' in output
    assert '+vllm = ">=0.15,<0.34"' in output
    assert state() == (set(), ("vllm 0.34.0",))
    count, lookups = len(runs.ran), len(listed)
    assert command() == 0
    assert "nothing to do" in capsys.readouterr().out
    assert (len(runs.ran), len(listed)) == (count, lookups)


def test_write_applies_the_edits_once(
    command: Command, cases: tuple[Case, ...], runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command() == 1
    assert len(journals()) == 1  # the results wait for --write
    assert command("--write") == 1
    assert 'vllm = ">=0.7,<0.8.5 || >=0.34"' in cases[0].path.read_text()
    assert 'vllm = ">=0.15,<0.34"' in cases[1].path.read_text()
    assert "`vllm-regress validate`" in capsys.readouterr().out
    assert state() == ({"vllm 0.34.0"}, ())
    assert journals() == []
    count = len(runs.ran)
    assert command("--write") == 0
    assert len(runs.ran) == count


def test_nothing_runs_without_a_new_release(
    command: Command,
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(LISTED, "vllm", LISTED["vllm"][:-1])
    assert command() == 0
    assert capsys.readouterr().out == "no new release of vllm since this package was made\n"
    assert runs.ran == []


def test_an_interrupted_look_is_not_remembered(command: Command, runs: Runs) -> None:
    runs.interrupted = True
    assert command("--write") == 130
    assert not Path("state.jsonl").exists()
    assert len(journals()) == 1


def test_a_release_that_cannot_be_built_is_tried_again(command: Command, runs: Runs) -> None:
    runs.outcomes = {(name, "vllm-0.34.0"): [] for name in ("back", "gone")}
    runs.unbuilt = ("vllm-0.34.0",)
    assert command("--write") == 3
    assert state() == (set(), ())
    count = len(runs.ran)
    assert command("--write") == 3  # on the same day, too
    assert len(runs.ran) == count + 1


def test_files_for_a_ci_job(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        command(
            *("--out", "edits.diff", "--out", "summary.md", "--out", "results"), "--format", "json"
        )
        == 1
    )
    printed = json.loads(capsys.readouterr().out)
    assert [change["case"] for change in printed["changes"]] == ["back", "gone"]
    assert Path("edits.diff").read_text() == printed["diff"]
    assert printed["diff"].startswith("--- a/cases/back/case.toml\n+++ b/cases/back/case.toml\n")
    assert Path("edits.diff").read_text() in Path("summary.md").read_text()
    assert len(list(Path("results").glob("*.json"))) == 1


def test_chosen_cases_have_a_state_of_their_own(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    for case_ids in ([], ["back"], ["gone"]):
        assert cli.main(["--cases", "cases", "watch", *case_ids]) == 1
    assert len(list(Path("cache/watch").glob("*.jsonl"))) == 3
    capsys.readouterr()
