"""Failures of other cases that a run shows."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from pytest_vllm_regress.answers.explain.siblings import same_failures
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.observation import Observation
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import Masked, Part
from tests.helpers.cases import project_cases
from tests.unit.answers.explain.recorded_reports import observations

VERSIONS = {"vllm": "0.11.2"}


def documented(case_id: str) -> tuple[Case, Observation]:
    """Return a case of the project and what its test saw on an affected release."""
    case = next(case for case in project_cases() if case.id == case_id)
    (first, *_) = (
        result.observation
        for run in observations(case)
        for result in run.results
        if result.verdict is Verdict.REPRODUCED and result.observation
    )
    return case, first


def test_the_text_of_another_case_tells_its_failure() -> None:
    _, observed = documented("vllm-43920")
    assert same_failures(observed, project_cases(), VERSIONS) == ("vllm-43920",)


def test_a_recorded_traceback_is_known_without_its_text_and_with_other_numbers() -> None:
    case, observed = documented("vllm-43920")
    symptom = dataclasses.replace(case.symptom, pattern="words that nothing prints")
    silent = dataclasses.replace(case, symptom=symptom)

    def seen(old: str, new: str) -> tuple[str, ...]:
        parts = {part: Masked(text.replace(old, new)) for part, text in observed.parts.items()}
        return same_failures(replace(observed, parts=parts), [silent], VERSIONS)

    assert seen("at position 1", "at position 7") == ("vllm-43920",)
    assert seen("Group modifier flag", "Another flag") == ()


def test_no_proof_of_the_project_shows_the_failure_of_an_unrelated_case() -> None:
    """What a test of one failure shows is its own, or the cases are related."""
    for case in project_cases():
        unrelated = [
            other
            for other in project_cases()
            if other.id != case.id and not case.may_share_failure_with(other)
        ]
        for result in (result for run in observations(case) for result in run.results):
            if result.verdict is Verdict.REPRODUCED and result.observation:
                same = same_failures(result.observation, unrelated, result.versions)
                assert same == (), f"{case.id} shows the failure of {same}"


def test_an_observation_without_text_shows_nothing() -> None:
    _, observed = documented("vllm-43920")
    parts = {Part.ASSERTION: Masked("expected 8 results, got 1")}
    assert same_failures(replace(observed, parts=parts), project_cases(), VERSIONS) == ()
