"""Every case of the project made worse in four ways: each is noticed. The table in docs/verdicts.md is of the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.cases import rejudge
from pytest_vllm_regress.cases.model import Case, find_cases
from pytest_vllm_regress.cases.proof import roles
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import Kind
from tests.helpers import ROOT, mutants

CASES = find_cases(ROOT / "cases")
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


@every_case
def test_each_way_is_noticed(case: Case, tmp_path: Path) -> None:
    noticed = mutants.every_way(case, CASES, tmp_path)
    assert all(noticed.values()), noticed
    assert len(noticed["pattern made `.*`"]) == len(noticed["range turned round"]) == 2
    # Where the documented failure is an assertion, a weak one is noticed by what it lets through, not only by the change.
    assert len(noticed["assertions weakened"]) == (2 if case.symptom.kinds == (Kind.WRONG_RESULT,) else 1)


@every_case
def test_what_was_seen_proves_the_case_as_it_stands(case: Case) -> None:
    again = rejudge.judge_again(case, rejudge.kept(case))
    assert {each.now.environment for each in again} == set(roles(case)), "run `vllm-regress validate` again"
    assert [each for each in again if each.stale or each.changed or not each.now.expected] == []
    shown = {each.now.environment for each in again if each.now.verdict is Verdict.REPRODUCED}
    assert shown == set(case.evidence.affected)
