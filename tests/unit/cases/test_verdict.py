"""The complete table of verdicts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_vllm_regress.cases.model import WHERE, Symptom
from pytest_vllm_regress.cases.observation import FAILURES, MAX_PART, Mechanism, Observation
from pytest_vllm_regress.cases.verdict import (
    Decision,
    Verdict,
    cases_that_document,
    combine,
    decide,
    excerpt,
    name_others,
)
from pytest_vllm_regress.errors import Kind, Masked, Part
from pytest_vllm_regress.util.codec import decode, encode
from tests.helpers.cases import project_cases

SYMPTOM = Symptom((Kind.HANG,), ("start", "ready"), r"^raylet: .*dead$")
SEEN = Observation(Kind.HANG, "start", "no answer", {Part.LOG: Masked("a\nraylet: worker dead\nb")})
PASSED = Observation(Kind.PASSED, "request", "8 results")
ABSENT = Observation(Kind.NOT_APPLICABLE, "start", "no pool", claim="since vLLM 0.7")

observations = st.builds(
    Observation,
    st.sampled_from(Kind),
    st.sampled_from(["start", "request"]),
    st.text(max_size=30),
    st.dictionaries(
        st.sampled_from(Part), st.text(max_size=30) | st.just("raylet: x dead"), max_size=3
    ),
    st.lists(st.builds(Mechanism, st.just("mechanism"), st.booleans()), max_size=2).map(tuple),
    st.sampled_from(["", "since vLLM 0.7"]),
)


@pytest.mark.parametrize(
    ("affected", "observed", "verdict"),
    [
        (True, SEEN, Verdict.REPRODUCED),
        (True, PASSED, Verdict.UNEXPECTEDLY_FIXED),
        (False, PASSED, Verdict.FIXED),
        (False, SEEN, Verdict.REGRESSED),
        (True, ABSENT, Verdict.NOT_APPLICABLE),
        (False, ABSENT, Verdict.NOT_APPLICABLE),
    ],
)
@pytest.mark.parametrize("control", [None, PASSED])
def test_verdict_table(
    affected: bool, observed: Observation, verdict: Verdict, control: Observation | None
) -> None:
    assert decide(affected, SYMPTOM, observed, control).verdict is verdict


@pytest.mark.parametrize("affected", [True, False])
@pytest.mark.parametrize(
    ("kind", "phase", "text"),
    [flags for flags in itertools.product((True, False), repeat=3) if not all(flags)],
)
def test_kind_phase_and_text_must_all_match(
    affected: bool, kind: bool, phase: bool, text: bool
) -> None:
    observed = Observation(
        Kind.HANG if kind else Kind.CRASH,
        "ready" if phase else "request",
        "",
        SEEN.parts if text else {Part.LOG: Masked("x")},
    )
    decision = decide(affected, SYMPTOM, observed)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert ("kind is crash, not hang" in decision.reason) is not kind
    assert ("phase is request, not start or ready" in decision.reason) is not phase
    assert ("does not match in" in decision.reason) is not text


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("part", Part)
def test_the_pattern_counts_only_in_the_searched_parts(kind: Kind, part: Part) -> None:
    observed = Observation(kind, "start", "", {part: Masked("raylet: worker dead")})
    by_default = Symptom((kind,), ("start",), SYMPTOM.pattern)
    assert (decide(True, by_default, observed).verdict is Verdict.REPRODUCED) is (
        part in WHERE[kind]
    )
    for named in Part:
        symptom = Symptom((kind,), ("start",), SYMPTOM.pattern, (named,))
        assert (decide(True, symptom, observed).verdict is Verdict.REPRODUCED) is (part is named)


def test_each_of_several_kinds_has_its_own_searched_parts() -> None:
    symptom = Symptom((Kind.EXCEPTION, Kind.ENGINE_DEATH), ("request",), "no grammar")
    died = Observation(
        Kind.ENGINE_DEATH, "request", "", {Part.LOG: Masked("ValueError: no grammar")}
    )
    raised = Observation(
        Kind.EXCEPTION, "request", "", {Part.LOG: Masked("ValueError: no grammar")}
    )
    assert decide(True, symptom, died).verdict is Verdict.REPRODUCED
    assert decide(True, symptom, raised).verdict is Verdict.INCONCLUSIVE


def test_the_decision_names_part_line_and_what_matched() -> None:
    decision = decide(True, SYMPTOM, SEEN)
    assert decision.match is not None
    assert (decision.match.part, decision.match.number, decision.match.text) == (
        Part.LOG,
        2,
        "raylet: worker dead",
    )
    assert "found in log, line 2: raylet: worker dead" in decision.reason


def test_the_matching_text_is_truncated() -> None:
    long = Observation(
        Kind.EXCEPTION, "start", "", {Part.EXCEPTION: Masked("head " + "x" * 30_000 + " tail")}
    )
    decision = decide(True, Symptom((Kind.EXCEPTION,), ("start",), "head .* tail"), long)
    assert decision.verdict is Verdict.REPRODUCED
    assert len(decision.reason) < 800


def test_long_parts_keep_both_ends() -> None:
    observation = Observation(
        Kind.HANG,
        "start",
        "",
        {Part.LOG: Masked("first " + "x" * 1_000_000 + " last"), Part.EXIT: Masked("")},
    )
    assert list(observation.parts) == [Part.LOG]
    assert len(observation.parts[Part.LOG]) <= MAX_PART
    assert observation.parts[Part.LOG].startswith("first ") and observation.parts[
        Part.LOG
    ].endswith(" last")


@given(
    st.booleans(),
    observations,
    observations.filter(lambda observation: observation.kind is not Kind.PASSED),
)
def test_a_failed_control_leg_is_inconclusive(
    affected: bool, observed: Observation, control: Observation
) -> None:
    verdict = decide(affected, SYMPTOM, observed, control).verdict
    absent = observed.kind is Kind.NOT_APPLICABLE and observed.claim
    assert verdict is (Verdict.NOT_APPLICABLE if absent else Verdict.INCONCLUSIVE)


def test_a_declared_control_leg_that_was_not_run_is_inconclusive() -> None:
    for affected in (True, False):
        decision = decide(affected, SYMPTOM, SEEN, declared="the pool")
        assert decision.verdict is Verdict.INCONCLUSIVE
        assert "the control leg (without the pool) was not run" in decision.reason
    assert decide(True, SYMPTOM, SEEN, PASSED, declared="the pool").verdict is Verdict.REPRODUCED
    assert decide(False, SYMPTOM, PASSED, declared="the pool").verdict is Verdict.FIXED


@given(st.booleans(), observations, st.none() | observations)
def test_only_a_pass_is_green_and_every_verdict_has_a_reason(
    affected: bool, observed: Observation, control: Observation | None
) -> None:
    decision = decide(affected, SYMPTOM, observed, control)
    assert decision.reason
    if decision.verdict is Verdict.FIXED:
        assert observed.kind is Kind.PASSED
        assert not affected
    if decision.verdict is Verdict.REPRODUCED:
        assert affected
        assert observed.kind is Kind.HANG
        assert control is None or control.kind is Kind.PASSED
        assert decision.match is not None
    if decision.verdict in (
        Verdict.REPRODUCED,
        Verdict.FIXED,
        Verdict.REGRESSED,
        Verdict.UNEXPECTEDLY_FIXED,
    ):
        assert all(mechanism.held for mechanism in observed.at_work)
    if decision.verdict is Verdict.NOT_APPLICABLE:
        assert observed.claim


@given(observations)
def test_observations_survive_the_result_file(observed: Observation) -> None:
    assert decode(Observation, encode(observed), "a file") == observed


@pytest.mark.parametrize(
    ("kind", "phase", "verdict"),
    [
        (Kind.EXCEPTION, "start", Verdict.NOT_APPLICABLE),
        (Kind.ENGINE_DEATH, "import", Verdict.NOT_APPLICABLE),
        (Kind.EXCEPTION, "request", Verdict.INCONCLUSIVE),
        (Kind.HANG, "start", Verdict.INCONCLUSIVE),
    ],
)
def test_a_case_cannot_be_shown_where_another_documented_failure_prevents_the_start(
    kind: Kind, phase: str, verdict: Verdict
) -> None:
    seen = Observation(kind, phase, "no pinned memory")
    decision = name_others(
        Decision(Verdict.INCONCLUSIVE, "another failure"), seen, ["vllm-1", "vllm-2"]
    )
    assert decision.verdict is verdict
    assert "vllm-1, vllm-2" in decision.reason


def test_expected_verdicts() -> None:
    assert {v for v in Verdict if v.expected} == {
        Verdict.REPRODUCED,
        Verdict.FIXED,
        Verdict.NOT_APPLICABLE,
    }


@given(st.lists(st.sampled_from(Verdict), min_size=1))
def test_combine_returns_the_worst(verdicts: list[Verdict]) -> None:
    combined = combine(verdicts)
    assert combined in verdicts
    assert combined is combine(reversed(verdicts)) is combine([combined, *verdicts])
    assert combined.expected == all(v.expected for v in verdicts)


def test_order_of_combined_verdicts() -> None:
    worst_first = [
        "INCONCLUSIVE",
        "REGRESSED",
        "UNEXPECTEDLY_FIXED",
        "REPRODUCED",
        "FIXED",
        "NOT_APPLICABLE",
    ]
    for worse, better in itertools.combinations(worst_first, 2):
        assert combine([Verdict(better), Verdict(worse)]).value == worse
    assert combine([]) is Verdict.INCONCLUSIVE


@given(st.text(), st.integers(30, 300))
def test_excerpt_is_bounded_and_on_one_line(text: str, limit: int) -> None:
    shortened = excerpt(text, limit)
    assert len(shortened) <= limit
    assert "\n" not in shortened


def test_a_hang_looks_like_another_case_only_by_a_text() -> None:
    """That nothing was answered is the symptom of several cases, and of any other hang."""
    silent = {Part.ANSWER: Masked("no HTTP answer: healthy")}
    text = {Part.LOG: Masked("ValueError: You can only use one kind of guided decoding")}

    def looks_like(parts: dict[Part, Masked]) -> tuple[str, ...]:
        observed = Observation(Kind.HANG, "request", "no answer", parts)
        return cases_that_document(project_cases(), {"vllm": "0.11.0"}, observed)

    assert looks_like(silent) == ()
    assert looks_like({**silent, **text}) == ("vllm-32006",)


def test_all_texts_of_a_symptom_must_stand_in_the_searched_parts() -> None:
    symptom = Symptom((Kind.CRASH,), ("request",), "core died", all=("of signal 9", "cache full"))
    texts = {Part.EXIT: Masked("of signal 9"), Part.LOG: Masked("cache full\nthe core died")}

    def decision(parts: dict[Part, Masked]) -> Decision:
        return decide(True, symptom, Observation(Kind.CRASH, "request", "", parts))

    assert decision(texts).verdict is Verdict.REPRODUCED
    assert decision(texts).match is not None and decision(texts).match.number == 2  # type: ignore[union-attr]
    for part in texts:
        lacking = decision({name: text for name, text in texts.items() if name is not part})
        assert lacking.verdict is Verdict.INCONCLUSIVE
        assert ("'of signal 9' does not match" in lacking.reason) is (part is Part.EXIT)


def test_a_mismatch_names_the_nearest_line() -> None:
    seen = Observation(Kind.HANG, "start", "", {Part.LOG: Masked("raylet: 3 workers idle")})
    symptom = Symptom((Kind.HANG,), ("start",), "raylet: 4 workers idle")
    assert r"A number that varies is \d+" in decide(True, symptom, seen).reason
