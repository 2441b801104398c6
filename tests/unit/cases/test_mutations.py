"""Mutants of every case, worsened in four ways: each is detected. docs/generated/verdicts.md has
the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.proofs import rejudge
from pytest_vllm_regress.cases.proofs.proof import evidence_roles
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import Kind
from tests.helpers import mutants
from tests.helpers.cases import project_cases

CASES = project_cases()
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


@every_case
def test_every_mutant_is_detected(case: Case, tmp_path: Path) -> None:
    noticed = mutants.mutant_detections(case, CASES, tmp_path)
    assert all(noticed.values()), noticed
    assert len(noticed["pattern made `.*`"]) == len(noticed["range turned round"]) == 2
    # If the documented failure is an assertion, weakening it is detected by its effect, not only as
    # a change.
    assert len(noticed["assertions weakened"]) == (
        2 if Kind.WRONG_RESULT in case.symptom.kinds else 1
    )


@every_case
def test_stored_observations_prove_the_current_case(case: Case) -> None:
    again = rejudge.rejudge_case(case, rejudge.load_observations(case))
    assert {judgement.now.environment for judgement in again} == set(evidence_roles(case)), (
        "run `vllm-regress validate` again"
    )
    assert [
        judgement
        for judgement in again
        if judgement.stale or judgement.changed or not judgement.now.expected
    ] == []
    environments = {
        judgement.now.environment
        for judgement in again
        if judgement.now.verdict is Verdict.REPRODUCED
    }
    assert environments == set(case.evidence.affected)
