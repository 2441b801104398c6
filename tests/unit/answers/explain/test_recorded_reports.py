"""Recall and mistakes, on the reports of this project's own cases and on logs of sound runs."""

from __future__ import annotations

import io

import pytest

from pytest_vllm_regress.answers.explain.explanation import Explanation
from pytest_vllm_regress.answers.explain.log import explain
from pytest_vllm_regress.cases.proofs.lint import SOUND_LOGS
from pytest_vllm_regress.cases.verdict import Verdict
from tests.helpers.cases import project_cases
from tests.unit.answers.explain.recorded_reports import pytest_output, recorded

CASES = project_cases()


def explained(content: bytes) -> Explanation:
    return explain(io.BytesIO(content), CASES, "log")


@pytest.mark.parametrize("versions", [True, False], ids=["with versions", "without versions"])
def test_recorded_failures_are_recognized_and_not_mistaken_for_others(versions: bool) -> None:
    missed, mistaken, count = [], [], 0
    for result in recorded(CASES, Verdict.REPRODUCED):
        findings = explained(pytest_output(result, versions=versions)).findings
        count += 1
        if result.case_id not in [finding.case.id for finding in findings]:
            missed.append(result.case_id)
        if any(
            result.case_id not in (finding.case.id, *finding.alternatives) for finding in findings
        ):
            mistaken.append(result.case_id)
    assert count >= 100
    assert len(missed) <= 0.05 * count, missed
    assert len(mistaken) <= 0.01 * count, mistaken


def test_reports_of_passed_tests_show_no_failure() -> None:
    for result in recorded(CASES, Verdict.FIXED, Verdict.NOT_APPLICABLE):
        assert explained(pytest_output(result, versions=True)).findings == ()


@pytest.mark.parametrize("file", sorted(SOUND_LOGS.iterdir()), ids=lambda file: file.name)
def test_logs_of_sound_runs_show_no_failure(file: object) -> None:
    explanation = explained((SOUND_LOGS / str(file)).read_bytes())
    assert (explanation.findings, explanation.unknown) == ((), ())
    assert [named.package for named in explanation.versions] == ["vllm"]
