"""Counting from result files how often proofs were run again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pytest_vllm_regress.answers.audit.attempts import (
    FILE,
    Attempts,
    count_attempts,
    read_attempts,
    total,
)
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.proofs.fingerprint import code_fingerprint
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import UsageError
from tests.helpers.cases import CaseFile


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return CaseFile("one", old=("vllm-0.8.4",), new=("vllm-0.8.5",)).write(
        tmp_path, {"test_one.py": "# first\n"}
    )


def run_of(
    case: Case, verdict: Verdict, started_at: float, environment: str = "vllm-0.8.4"
) -> RunResult:
    code = code_fingerprint(case.directory)
    return RunResult(
        (
            TestResult(
                "one",
                "one::test",
                verdict,
                "",
                "sim",
                environment,
                started_at=started_at,
                code=code,
            ),
        )
    )


def test_each_run_of_a_proof_counts_once(case: Case, tmp_path: Path) -> None:
    runs = [
        run_of(case, Verdict.INCONCLUSIVE, 2.0),
        run_of(case, Verdict.REPRODUCED, 1.0),
        run_of(case, Verdict.UNEXPECTEDLY_FIXED, 3.0),
        run_of(case, Verdict.FIXED, 1.0, "vllm-0.8.5"),
        run_of(case, Verdict.FIXED, 1.0, "vllm-0.9.0"),
    ]
    assert count_attempts(tmp_path, [case], runs) == 4
    assert count_attempts(tmp_path, [case], runs) == 0
    row = read_attempts(tmp_path)["one"]
    assert list(row) == ["vllm-0.8.4 sim", "vllm-0.8.5 sim"]
    assert row["vllm-0.8.4 sim"].wrong == 1
    sums = total(row.values())
    assert (sums.runs, sums.expected, sums.inconclusive, sums.latest) == (4, 2, 1, 3.0)


def test_several_tests_of_a_case_are_one_run(case: Case, tmp_path: Path) -> None:
    (result,) = run_of(case, Verdict.REPRODUCED, 1.0).results
    second = dataclasses.replace(
        result, test="one::second", verdict=Verdict.INCONCLUSIVE, started_at=9.0
    )
    assert count_attempts(tmp_path, [case], [RunResult((result, second))]) == 1
    assert read_attempts(tmp_path)["one"]["vllm-0.8.4 sim"].inconclusive == 1


def test_a_changed_test_starts_anew(case: Case, tmp_path: Path) -> None:
    before = run_of(case, Verdict.REPRODUCED, 1.0)
    assert count_attempts(tmp_path, [case], [before]) == 1
    (case.directory / "test_one.py").write_text("second = 1\n")
    assert count_attempts(tmp_path, [case], [before]) == 0
    assert count_attempts(tmp_path, [case], [run_of(case, Verdict.REPRODUCED, 2.0)]) == 1
    assert read_attempts(tmp_path)["one"]["vllm-0.8.4 sim"] == Attempts(
        code_fingerprint(case.directory), 1, 1, 0, 2.0
    )


def test_an_environment_that_was_not_built_is_an_attempt(case: Case, tmp_path: Path) -> None:
    unbuilt = TestResult(
        "one", "one", Verdict.INCONCLUSIVE, "not built", "sim", "vllm-0.8.4", started_at=1.0
    )
    assert count_attempts(tmp_path, [case], [RunResult((unbuilt,))]) == 1


def test_an_invalid_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"one": {"vllm-0.8.4 sim": {"often": 1}}}')
    with pytest.raises(UsageError, match=FILE):
        read_attempts(tmp_path)
