"""The verdict table, all of it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_vllm_regress.cases.model import Symptom
from pytest_vllm_regress.cases.verdict import KINDS, Observation, Verdict, combine, decide, excerpt

SYMPTOM = Symptom("hang", ("start", "ready"), r"^raylet: .*dead$")
SEEN = Observation("hang", "start", "a\nraylet: worker dead\nb")
PASSED = Observation("passed", "request", "8 results")

observations = st.builds(
    Observation, st.sampled_from(KINDS), st.sampled_from(["start", "request"]), st.text(max_size=30)
)


@pytest.mark.parametrize(
    ("affected", "observed", "verdict"),
    [
        (True, SEEN, Verdict.REPRODUCED),
        (True, PASSED, Verdict.UNEXPECTEDLY_FIXED),
        (False, PASSED, Verdict.FIXED),
        (False, SEEN, Verdict.REGRESSED),
        (True, Observation("not-applicable", "start", "no pool"), Verdict.NOT_APPLICABLE),
        (False, Observation("not-applicable", "start", "no pool"), Verdict.NOT_APPLICABLE),
    ],
)
@pytest.mark.parametrize("control", [None, PASSED])
def test_table(affected: bool, observed: Observation, verdict: Verdict, control: Observation | None) -> None:
    assert decide(affected, SYMPTOM, observed, control).verdict is verdict


@pytest.mark.parametrize("affected", [True, False])
@pytest.mark.parametrize(
    ("kind", "phase", "text"), [each for each in itertools.product((True, False), repeat=3) if not all(each)]
)
def test_kind_phase_and_text_must_all_match(affected: bool, kind: bool, phase: bool, text: bool) -> None:
    observed = Observation("hang" if kind else "crash", "ready" if phase else "request", SEEN.text if text else "other")
    decision = decide(affected, SYMPTOM, observed)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert ("kind is crash, not hang" in decision.reason) is not kind
    assert ("phase is request, not start or ready" in decision.reason) is not phase
    assert ("its text does not match" in decision.reason) is not text


def test_the_documented_text_is_quoted_and_bounded() -> None:
    assert "raylet: worker dead" in decide(True, SYMPTOM, SEEN).reason
    long = Observation("hang", "start", "head " + "x" * 100_000 + " tail")
    reason = decide(True, SYMPTOM, long).reason
    assert "head" in reason
    assert "tail" in reason
    assert len(reason) < 800


@given(st.booleans(), observations, observations.filter(lambda each: each.kind != "passed"))
def test_a_control_leg_that_does_not_pass_decides_nothing(
    affected: bool, observed: Observation, control: Observation
) -> None:
    verdict = decide(affected, SYMPTOM, observed, control).verdict
    assert verdict is (Verdict.NOT_APPLICABLE if observed.kind == "not-applicable" else Verdict.INCONCLUSIVE)


@given(st.booleans(), observations, st.none() | observations)
def test_only_a_pass_is_green_and_every_reason_says_something(
    affected: bool, observed: Observation, control: Observation | None
) -> None:
    decision = decide(affected, SYMPTOM, observed, control)
    assert decision.reason
    if decision.verdict is Verdict.FIXED:
        assert observed.kind == "passed"
        assert not affected
    if decision.verdict is Verdict.REPRODUCED:
        assert affected
        assert observed.kind == "hang"
        assert control is None or control.kind == "passed"


def test_expected() -> None:
    assert {v for v in Verdict if v.expected} == {Verdict.REPRODUCED, Verdict.FIXED, Verdict.NOT_APPLICABLE}


@given(st.lists(st.sampled_from(Verdict), min_size=1))
def test_combine(verdicts: list[Verdict]) -> None:
    combined = combine(verdicts)
    assert combined in verdicts
    assert combined is combine(reversed(verdicts)) is combine([combined, *verdicts])
    assert combined.expected == all(v.expected for v in verdicts)


def test_combine_order() -> None:
    worst_first = ["INCONCLUSIVE", "REGRESSED", "UNEXPECTEDLY_FIXED", "REPRODUCED", "FIXED", "NOT_APPLICABLE"]
    for worse, better in itertools.combinations(worst_first, 2):
        assert combine([Verdict(better), Verdict(worse)]).value == worse
    assert combine([]) is Verdict.INCONCLUSIVE


def test_unknown_kind() -> None:
    with pytest.raises(ValueError, match="'pass' is not one of passed"):
        Observation("pass", "start", "")


@given(st.text(), st.integers(30, 300))
def test_excerpt_is_bounded_and_on_one_line(text: str, limit: int) -> None:
    shown = excerpt(text, limit)
    assert len(shown) <= limit
    assert "\n" not in shown
