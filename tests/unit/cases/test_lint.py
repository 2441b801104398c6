"""What is said against a case without running it; and that mutants of every case of the project are noticed."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_vllm_regress.cases import lint, proof
from pytest_vllm_regress.cases.control import Control
from pytest_vllm_regress.cases.model import Case, Range, find_cases
from pytest_vllm_regress.cases.results import TestResult
from pytest_vllm_regress.errors import Kind
from tests.helpers import ROOT

CASES = find_cases(ROOT / "cases")
BY_ID = {case.id: case for case in CASES}
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


def with_pattern(case: Case, pattern: str) -> Case:
    return dataclasses.replace(case, symptom=dataclasses.replace(case.symptom, pattern=pattern))


def inverted(affected: Range) -> Range:
    """The versions above the range; of one without an upper bound those below."""
    clauses = affected.specifier.replace(" ", "").split(",")
    upper = next((each for each in clauses if each.startswith("<")), None)
    if upper is None:
        return Range(affected.package, next(each for each in clauses if each.startswith(">=")).replace(">=", "<"))
    return Range(affected.package, upper.replace("<=", ">") if "=" in upper else upper.replace("<", ">="))


@every_case
@pytest.mark.parametrize("pattern", [".*", ".", "", "[a-z]+", "a|"])
def test_a_pattern_made_wide_is_noticed(case: Case, pattern: str) -> None:
    (line,) = lint.warnings(with_pattern(case, pattern), CASES)
    assert line.startswith(f"{case.path}: symptom.pattern matches ") and "says nothing about this failure" in line


@every_case
def test_a_range_turned_round_is_noticed(case: Case) -> None:
    evidence = proof.read(case.directory / proof.FILE)
    assert lint.contradictions(case, evidence) == []
    mutant = dataclasses.replace(case, affected=tuple(map(inverted, case.affected)))
    assert lint.contradictions(mutant, evidence)


@every_case
def test_a_control_taken_away_is_noticed(case: Case) -> None:
    results = [
        TestResult(case.id, "t", proof.WANTED[role], "seen", "sim", name, started_at=1.0)
        for name, role in proof.roles(case).items()
    ]
    _, wrong = proof.prove(dataclasses.replace(case, control=Control()), [results], lambda name: "0" * 16)
    assert any(
        "no control leg passed" in line or "nothing shows that its mechanism was at work" in line for line in wrong
    )


def test_a_pattern_that_fits_another_case_is_told() -> None:
    mine = with_pattern(BY_ID["vllm-17173"], r"expected \d+")
    (line,) = lint.warnings(mine, [mine, dataclasses.replace(mine, id="another")])
    assert "matches what another looks like, too ('expected 0')" in line


def test_a_case_of_another_kind_is_no_rival() -> None:
    mine = BY_ID["vllm-17173"]
    symptom = dataclasses.replace(mine.symptom, kinds=(Kind.HANG,))
    assert lint.warnings(mine, [dataclasses.replace(mine, id="another", symptom=symptom)]) == []
