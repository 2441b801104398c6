"""From evidence to an observation, a verdict, and what pytest reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from pytest_vllm_regress.cases.model import Symptom
from pytest_vllm_regress.cases.observation import Mechanism
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import (
    BuildError,
    ChildDied,
    Kind,
    Masked,
    NotAtWork,
    Part,
    RemoteError,
    Unsupported,
    UsageError,
)
from pytest_vllm_regress.plugin import verdicts
from pytest_vllm_regress.plugin.leg import CONTROL, SUBJECT, Leg
from pytest_vllm_regress.plugin.reporter import ATTRIBUTE
from tests.helpers.cases import CaseFile
from tests.unit.plugin.conftest import MakeItem, report

WRONG = AssertionError("expected 8, got 1")
HANG = CaseFile(kind="hang", omits="the pool", pattern="waiting")


@pytest.mark.parametrize(
    ("evidence", "kind", "phase", "parts"),
    [
        (
            Leg(error=WRONG, phase="request"),
            Kind.WRONG_RESULT,
            "request",
            {Part.ASSERTION: str(WRONG)},
        ),
        (
            Leg(error=WRONG, dead=True, engine={Part.EXIT: Masked("exit status 7")}),
            Kind.ENGINE_DEATH,
            "probe",
            {Part.ASSERTION: str(WRONG), Part.EXIT: "exit status 7"},
        ),
        (
            Leg(error=ValueError("a\nb")),
            Kind.EXCEPTION,
            "test",
            {Part.EXCEPTION: "ValueError: a\nb"},
        ),
        (
            Leg(error=RemoteError("it raised", phase="start", parts={Part.TRACEBACK: Masked("x")})),
            Kind.EXCEPTION,
            "start",
            {Part.TRACEBACK: "x"},
        ),
        (Leg(error=ChildDied("gone", phase="ready")), Kind.CRASH, "ready", {}),
        (Leg(error=UsageError("no")), Kind.USAGE, "test", {}),
        (Leg(error=Unsupported("no", since="0.9")), Kind.NOT_APPLICABLE, "probe", {}),
        (Leg(skipped="no reason"), Kind.NOT_APPLICABLE, "probe", {}),
        (Leg(replies=2, phase="request"), Kind.PASSED, "request", {}),
    ],
)
def test_observations_of_a_leg(
    evidence: Leg, kind: Kind, phase: str, parts: dict[Part, str]
) -> None:
    observation = verdicts.observe(evidence)
    assert (observation.kind, observation.phase, dict(observation.parts)) == (kind, phase, parts)


def test_a_pass_without_a_reply_is_not_a_pass() -> None:
    observation = verdicts.observe(Leg())
    assert observation.kind is not Kind.PASSED and "without one reply" in observation.summary


def reply(status: int, body: Any) -> httpx.Response:
    return httpx.Response(
        status, json=body, request=httpx.Request("POST", "http://127.0.0.1:1/v1/messages")
    )


@pytest.mark.parametrize(
    ("last", "held", "error", "kind"),
    [
        (reply(404, {"detail": "Not Found"}), False, WRONG, Kind.NOT_APPLICABLE),
        (
            reply(404, {"error": {"message": "Not Found", "code": 404}}),
            True,
            KeyError("content"),
            Kind.NOT_APPLICABLE,
        ),
        (reply(404, {"detail": "Not Found"}), True, WRONG, Kind.WRONG_RESULT),
        (
            reply(404, {"error": {"message": "The model `x` does not exist."}}),
            False,
            WRONG,
            Kind.WRONG_RESULT,
        ),
        (reply(500, {"detail": "Not Found"}), False, WRONG, Kind.WRONG_RESULT),
        (reply(404, ["Not Found"]), True, KeyError("content"), Kind.EXCEPTION),
    ],
)
def test_a_test_of_an_address_that_the_server_lacks_is_not_applicable(
    last: httpx.Response, held: bool, error: Exception, kind: Kind
) -> None:
    evidence = Leg(error=error, at_work=[Mechanism("a message is answered", held)])
    evidence.replied("request", last)
    observation = verdicts.observe(evidence)
    assert observation.kind is kind
    assert ("/v1/messages" in observation.summary) is (kind is Kind.NOT_APPLICABLE)


def test_a_group_counts_as_its_first_error() -> None:
    group = BaseExceptionGroup("two", [BaseExceptionGroup("one", [WRONG]), KeyError("later")])
    assert verdicts.observe(Leg(error=group)).kind is Kind.WRONG_RESULT


def test_of_several_errors_the_documented_one_counts() -> None:
    symptom = Symptom((Kind.WRONG_RESULT,), ("request",), "expected \\d results")
    documented = AssertionError("expected 8 results, got 1")
    group = BaseExceptionGroup("two", [AssertionError("another"), documented])
    for leg in (
        Leg(error=group, symptom=symptom, phase="request"),
        Leg(error=KeyError("x"), later_errors=[documented], symptom=symptom, phase="request"),
    ):
        assert "expected 8 results" in verdicts.observe(leg).summary
    other = replace(symptom, phases=("start",))
    assert "another" in verdicts.observe(Leg(error=group, symptom=other, phase="request")).summary


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ERROR EngineCore encountered a fatal error.", Kind.ENGINE_DEATH),
        ("vllm.v1.engine.exceptions.EngineDeadError: see above", Kind.ENGINE_DEATH),
        ("ERROR a request failed", Kind.WRONG_RESULT),
    ],
)
def test_a_death_that_the_log_tells_comes_before_what_was_asserted(text: str, kind: Kind) -> None:
    status = AssertionError("expected status 200, got 500")
    leg = Leg(error=status, phase="request", engine={Part.LOG: Masked(text)})
    assert verdicts.observe(leg).kind is kind
    leg.symptom = Symptom((Kind.WRONG_RESULT,), ("request",), "expected status 200, got 500")
    assert verdicts.observe(leg).kind is Kind.WRONG_RESULT


@pytest.mark.parametrize(
    ("phase", "kind"), [("request", Kind.ENGINE_DEATH), ("start", Kind.EXCEPTION)]
)
def test_an_exception_of_an_engine_that_has_ended_since_is_its_death(
    phase: str, kind: Kind
) -> None:
    error = RemoteError("it raised", phase=phase, parts={Part.EXCEPTION: Masked("it raised")})
    assert verdicts.observe(Leg(error=error, dead=True, phase=phase)).kind is kind
    assert verdicts.observe(Leg(error=error, phase=phase)).kind is Kind.EXCEPTION
    symptom = Symptom((Kind.EXCEPTION,), (phase,), "it raised")
    assert verdicts.observe(Leg(error=error, dead=True, symptom=symptom)).kind is Kind.EXCEPTION


@pytest.mark.parametrize("error", [None, WRONG])
def test_what_is_not_found_in_a_shortened_log_proves_nothing(error: Exception | None) -> None:
    observation = verdicts.observe(Leg(replies=1, error=error, missed_log=True))
    assert observation.kind is Kind.LIMIT and "--vllm-limit log" in observation.summary


def test_a_test_that_reads_what_no_proof_covers_proves_nothing() -> None:
    observation = verdicts.observe(Leg(replies=1, uncovered=["data/prompts.json"]))
    assert observation.kind is Kind.USAGE and "data/prompts.json" in observation.summary


def test_an_observation_is_masked_and_names_the_mechanisms() -> None:
    evidence = Leg(error=AssertionError("password=hunter2222"), at_work=[Mechanism("hits", True)])
    observation = verdicts.observe(evidence)
    assert "hunter2222" not in observation.summary + observation.parts[Part.ASSERTION]
    assert observation.at_work == (Mechanism("hits", True),)


@pytest.mark.parametrize(
    ("case", "evidence", "broken", "needed"),
    [
        (HANG, Leg(error=WRONG), None, True),
        (HANG, Leg(replies=1), None, False),
        (HANG, Leg(error=Unsupported("no", since="0.9")), None, False),
        (HANG, Leg(error=WRONG, at_work=[Mechanism("hits", False)]), None, False),
        (HANG, Leg(error=WRONG), BuildError("no solution"), False),
        (CaseFile(), Leg(error=WRONG), None, False),
    ],
)
def test_which_failures_need_a_control_leg(
    make_item: MakeItem, case: CaseFile, evidence: Leg, broken: Exception | None, needed: bool
) -> None:
    item = make_item(case, broken=broken)
    assert verdicts.needs_control(item, item.marked, verdicts.observe(evidence)) is needed


def judged(item: Any, subject: Leg, control: Leg | None = None) -> verdicts.JudgedLeg:
    return verdicts.decide_leg(item, item.marked, subject, verdicts.observe(subject), control)


def test_an_environment_that_could_not_be_used_proves_nothing(make_item: MakeItem) -> None:
    error = BuildError("no solution")
    item = make_item(broken=error)
    leg = judged(item, Leg(error=error, reports=[report("failed", "setup", "text")]))
    assert leg.decision.verdict is Verdict.INCONCLUSIVE and "no solution" in leg.decision.reason
    (rewritten,) = verdicts.rewrite(item, leg)
    result = getattr(rewritten, ATTRIBUTE)
    assert (result.device, result.environment, result.versions) == ("unknown", "old", {})
    assert result.command == "pytest 'test_demo.py::test_demo' --vllm-env='old'"


@pytest.mark.parametrize(("phase", "same_as"), [("start", ()), ("request", ("other",))])
def test_what_does_not_start_because_of_another_case_is_not_its_sibling(
    make_item: MakeItem, tmp_path: Path, phase: str, same_as: tuple[str, ...]
) -> None:
    (tmp_path / "pyproject.toml").touch()
    upstream = ("https://example.org/2",)
    kind = {"kind": "exception", "phase": phase, "pattern": "the wrong sampler"}
    other = CaseFile("other", upstream=upstream, **kind).write(tmp_path / "cases")
    (other.directory / "evidence.json").touch()
    item = make_item()
    parts = {Part.EXCEPTION: Masked("ValueError: the wrong sampler")}
    leg = judged(item, Leg(error=RemoteError("it raised", phase=phase, parts=parts)))
    verdict = Verdict.NOT_APPLICABLE if phase == "start" else Verdict.INCONCLUSIVE
    assert (leg.decision.verdict, leg.same_as) == (verdict, same_as)
    assert leg.decision.reason.startswith("same traceback") is bool(same_as)


@pytest.mark.parametrize(
    ("version", "evidence", "settings", "verdict", "outcome"),
    [
        ("0.8.4", Leg(error=WRONG), {}, Verdict.REPRODUCED, "skipped"),
        ("0.8.4", Leg(error=WRONG), {"fail_on_known": True}, Verdict.REPRODUCED, "failed"),
        ("0.8.5", Leg(error=WRONG), {}, Verdict.REGRESSED, "failed"),
        ("0.8.4", Leg(replies=1), {}, Verdict.UNEXPECTEDLY_FIXED, "failed"),
        ("0.8.5", Leg(replies=1), {}, Verdict.FIXED, "passed"),
        (
            "0.8.4",
            Leg(error=Unsupported("no", since="0.9")),
            {},
            Verdict.NOT_APPLICABLE,
            "skipped",
        ),
        ("0.8.4", Leg(skipped="no reason"), {}, Verdict.INCONCLUSIVE, "failed"),
        ("0.8.4", Leg(error=KeyError("other")), {}, Verdict.INCONCLUSIVE, "failed"),
    ],
)
def test_the_deciding_report_says_the_verdict(
    make_item: MakeItem,
    version: str,
    evidence: Leg,
    settings: dict[str, Any],
    verdict: Verdict,
    outcome: str,
) -> None:
    item = make_item(version=version, **settings)
    test_outcome = "failed" if evidence.error else "skipped" if evidence.skipped else "passed"
    reports = [
        report(when="setup"),
        report(test_outcome, text="a traceback" if evidence.error else None),
        report(when="teardown"),
    ]
    evidence = Leg(**{**vars(evidence), "reports": reports})
    setup, call, teardown = verdicts.rewrite(item, judged(item, evidence))
    assert (setup.outcome, call.outcome, teardown.outcome) == ("passed", outcome, "passed")
    assert hasattr(call, "wasxfail") == (outcome == "skipped" and verdict is Verdict.REPRODUCED)
    result = getattr(call, ATTRIBUTE)
    assert (result.verdict, result.versions["vllm"], result.device) == (verdict, version, "sim")
    assert result.command.endswith("--vllm-env='old' --vllm-device sim")
    assert ("vllm_verdict", verdict.name) in call.user_properties
    if outcome == "failed":
        assert call.longreprtext.startswith(f"{verdict.name}: ")
        assert (
            "upstream: https://example.org/1; first fixed version: vllm 0.8.5" in call.longreprtext
        )
        assert ("a traceback" in call.longreprtext) == (evidence.error is not None)


def test_what_the_control_leg_met_is_shown_and_masked(make_item: MakeItem) -> None:
    item = make_item(HANG)
    failed = Leg(CONTROL, error=KeyError("password=hunter2222"))
    subject = Leg(
        SUBJECT, error=ChildDied("gone", phase="probe"), reports=[report("failed", text="t")]
    )
    (rewritten,) = verdicts.rewrite(item, judged(item, subject, failed))
    assert getattr(rewritten, ATTRIBUTE).control == "failed"
    ((title, text),) = rewritten.sections
    assert title == "control leg" and "password=" in text and "hunter2222" not in text


@pytest.mark.parametrize("proven", [False, True])
def test_a_case_without_a_proof_that_passes_shows_what_the_target_answered(
    make_item: MakeItem, proven: bool
) -> None:
    item = make_item(version="0.8.4")
    if proven:
        (item.marked.case.directory / "evidence.json").touch()
    subject = Leg()
    for reply in ({"dropped": 1}, None, httpx.Response(200, text="fine"), [1, 2], "x" * 1000):
        subject.replied("request", reply)
    decision = judged(item, subject).decision
    assert decision.verdict is Verdict.UNEXPECTEDLY_FIXED
    assert decision.reason.endswith(
        "an affected installation passed (affected: vllm 0.8.4 is in <0.8.5)"
    )
    words = "the test does not show the failure here, or the range is wrong; the last answers: HTTP 200: fine | [1, 2] | 'xxx"
    assert decision.reason.startswith(words) is not proven
    assert len(decision.reason) < 500


@pytest.mark.parametrize("error", [NotAtWork("not at work: tools"), KeyError("output")])
def test_a_test_that_ends_before_its_assertion_shows_what_the_target_answered(
    make_item: MakeItem, error: Exception
) -> None:
    absent = isinstance(error, NotAtWork)
    subject = Leg(error=error, at_work=[Mechanism("tools", held=False)] if absent else [])
    subject.replied("request", httpx.Response(400, text="the prompt is too long"))
    decision = judged(make_item(), subject).decision
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert decision.reason.endswith("; the last answers: HTTP 400: the prompt is too long")


@pytest.mark.parametrize(("proven", "same_as"), [(False, ()), (True, ("broad",))])
def test_only_a_proven_case_is_a_sibling(
    make_item: MakeItem, tmp_path: Path, proven: bool, same_as: tuple[str, ...]
) -> None:
    """Regression: the broad pattern of a draft was taken for the failure that other cases show."""
    (tmp_path / "pyproject.toml").touch()
    broad = CaseFile(
        "broad", upstream=("https://example.org/2",), kind="exception", pattern="ValueError"
    ).write(tmp_path / "cases")
    parts = {Part.EXCEPTION: Masked("ValueError: the wrong sampler")}
    error = RemoteError("it raised", phase="request", parts=parts)
    if proven:
        (broad.directory / "evidence.json").touch()
    assert judged(make_item(), Leg(error=error)).same_as == same_as


def test_an_error_in_the_tests_own_code_says_so(make_item: MakeItem) -> None:
    item = make_item(HANG)
    subject = Leg(error=KeyError("choices"), line="test_demo.py:12", replies=1)
    assert not verdicts.needs_control(item, item.marked, verdicts.observe(subject))
    decision = judged(item, subject).decision
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert decision.reason.startswith(
        "the test itself failed: test_demo.py:12: KeyError: 'choices'"
    )


def test_a_failure_to_start_is_named_before_the_control_leg(make_item: MakeItem) -> None:
    item = make_item(HANG)
    control = Leg(CONTROL, error=UsageError("the control leg did the same as the subject"))
    reason = judged(
        item, Leg(error=RemoteError("no such model", phase="start")), control
    ).decision.reason
    words = "nothing was ready for the test: exception in phase start: [start] no such model; the control leg failed too"
    assert reason.startswith(words)
    later = judged(
        item, Leg(error=RemoteError("refused", phase="request")), control
    ).decision.reason
    assert later.startswith(
        "exception in phase request: [request] refused; the control leg failed too"
    )
