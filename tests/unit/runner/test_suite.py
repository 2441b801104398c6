"""The command of a user's own suite, and what a run of it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.runner.suite import (
    EnvironmentRun,
    SuiteOutcome,
    SuiteTest,
    TestOutcome,
    refuse_paths,
    suite_command,
)

PASSED, FAILED = SuiteTest(TestOutcome.PASSED), SuiteTest(TestOutcome.FAILED)


def test_pytest_is_the_one_beside_our_interpreter() -> None:
    beside = str(Path(sys.executable).with_name("pytest"))
    assert suite_command(["pytest", "tests/", "-k", "a b"]) == (beside, "tests/", "-k", "a b")
    expected = (sys.executable, "-m", "pytest", "tests/")
    assert suite_command(["python", "-m", "pytest", "tests/"]) == expected


@pytest.mark.parametrize("arguments", [[], ["-q"], ["-n", "4"], ["-k", "pytest"]])
def test_options_are_for_the_pytest_that_runs_cases(arguments: list[str]) -> None:
    assert suite_command(arguments) == ()
    refuse_paths(arguments)


@pytest.mark.parametrize(
    "arguments",
    [["tests/"], ["-q", "tests/test_a.py::test"], ["-n", "4", "tests"], ["--maxfail=1", "tests"]],
)
def test_a_path_is_refused_where_cases_are_run(arguments: list[str]) -> None:
    with pytest.raises(UsageError, match="-- pytest tests"):
        refuse_paths(arguments)


def test_the_environment_is_chosen_by_the_command() -> None:
    with pytest.raises(UsageError, match="--vllm-env=other: leave it out"):
        suite_command(["pytest", "--vllm-env=other"])
    with pytest.raises(UsageError, match="/nowhere/pytest: no such program"):
        suite_command(["/nowhere/pytest"])


@pytest.mark.parametrize(
    ("runs", "code"),
    [
        ([EnvironmentRun("a", {"t": PASSED, "s": SuiteTest(TestOutcome.SKIPPED)})], 0),
        ([EnvironmentRun("a", {"t": PASSED}), EnvironmentRun("b", {"t": FAILED})], 1),
        ([EnvironmentRun("a", {"t": PASSED, "u": SuiteTest(TestOutcome.NOT_RUN)})], 1),
        ([EnvironmentRun("a", {"t": PASSED}, ("pytest had an internal error",))], 1),
        ([EnvironmentRun("a")], 1),
        ([EnvironmentRun("a", {"t": FAILED}), EnvironmentRun("b", unbuilt=True)], 3),
    ],
)
def test_the_exit_code_is_0_only_if_everything_passed_everywhere(
    runs: list[EnvironmentRun], code: int
) -> None:
    assert SuiteOutcome(tuple(runs)).exit_code == code
    assert SuiteOutcome(tuple(runs), interrupted=True).exit_code == 130
