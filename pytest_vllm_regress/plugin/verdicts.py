"""From what was seen during a leg to its observation, to the verdict, and to pytest's reports."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from ..answers.explain.siblings import same_failures
from ..cases.loading import default_cases_dir, load_valid_cases
from ..cases.model import Case
from ..cases.observation import FAILURES, TEST, Observation
from ..cases.proofs.fingerprint import code_fingerprint
from ..cases.proofs.proof import FILE as PROOF
from ..cases.proofs.proof import recorded_versions
from ..cases.results import TestResult
from ..cases.verdict import (
    START_PHASES,
    Decision,
    Verdict,
    cases_that_document,
    excerpt,
    judge_observation,
    name_others,
)
from ..engines.http.transport import unknown_address
from ..engines.processes.agent import recorded_variables
from ..engines.target import Target
from ..errors import (
    BuildError,
    ChildError,
    HeldRequests,
    Kind,
    NotAtWork,
    Part,
    Unsupported,
    UsageError,
)
from ..util.masking import mask
from ..util.patterns import PatternError
from .leg import Leg, sanitize
from .markers import MarkedCase, test_id
from .reporter import ATTRIBUTE
from .session import environment_of, session_of
from .state import settings_of

MAX_SHOWN = 4000
MAX_REPLY = 150
_DEATH = re.compile(r"EngineDeadError|EngineCore encountered a fatal error")
"""What vLLM prints when an engine has died."""


@dataclass(frozen=True)
class JudgedLeg:
    """Observation and verdict of one test of a case in one environment.

    ``target`` is None if the environment itself failed.
    """

    marked: MarkedCase
    target: Target | None
    subject: Leg
    observed: Observation
    control: Leg | None
    control_observed: Observation | None
    decision: Decision
    same_as: tuple[str, ...] = ()
    """Other cases whose documented failure was seen."""

    @property
    def case(self) -> Case:
        return self.marked.case


def needs_control(item: pytest.Item, marked: MarkedCase, observed: Observation) -> bool:
    """When does the control leg run? After a failure of the target, if the case declares one, and the failure proves
    something only if it passes."""
    return marked.case.control.declared and _target_failed(observed) and target_of(item) is not None


def _target_failed(observed: Observation) -> bool:
    """Return whether the target failed, and not the test itself."""
    return observed.kind in FAILURES and not observed.absent and observed.phase != TEST


def decide_leg(
    item: pytest.Item, marked: MarkedCase, subject: Leg, observed: Observation, control: Leg | None
) -> JudgedLeg:
    """Return the verdict on the observations of both legs."""
    target = target_of(item)
    control_observed = observe(control) if control else None
    judged = functools.partial(
        JudgedLeg, marked, target, subject, observed, control, control_observed
    )
    if target is None:
        why = f"the environment could not be used: {observed.summary}"
        return judged(Decision(Verdict.INCONCLUSIVE, why))
    case = marked.case
    decision = judge_observation(case, marked.variant, target.versions, observed, control_observed)
    if decision.verdict is Verdict.UNEXPECTEDLY_FIXED and not (case.directory / PROOF).exists():
        reason = (
            "the test does not show the failure here, or the range is wrong"
            f"{_last_answers(subject)}; {decision.reason}"
        )
        decision = dataclasses.replace(decision, reason=reason)
    elif decision.verdict is Verdict.INCONCLUSIVE and _stopped_in_test(observed):
        reason = f"{decision.reason}{_last_answers(subject)}"
        decision = dataclasses.replace(decision, reason=reason)
    if not _target_failed(observed):
        return judged(decision)
    others = [other for other in _cases_around(case.directory) if other.id != case.id]
    if decision.verdict is Verdict.INCONCLUSIVE and (
        names := cases_that_document(others, target.versions, observed)
    ):
        decision = name_others(decision, observed, names)
    if decision.verdict is Verdict.NOT_APPLICABLE:  # that names the other case
        return judged(decision)
    # A draft's pattern may be so broad that it matches any failure.
    proven = [other for other in others if (other.directory / PROOF).exists()]
    unrelated = [other for other in proven if not case.may_share_failure_with(other)]
    same_as = same_failures(observed, unrelated, recorded_versions(target.versions, case))
    if same_as:
        reason = f"same traceback or text as {', '.join(same_as)}: {decision.reason}"
        decision = dataclasses.replace(decision, reason=reason)
    return judged(decision, same_as)


@functools.cache
def _cases_around(directory: Path) -> tuple[Case, ...]:
    """Return the cases of the project that contains ``directory``, or none if they cannot be
    loaded."""
    try:
        return load_valid_cases(default_cases_dir(directory)).cases
    except UsageError:
        return ()


def _last_answers(subject: Leg) -> str:
    """Return the target's last answers, for the reason for a verdict; empty if unknown."""
    replies = [excerpt(_in_words(reply), MAX_REPLY) for reply in subject.last_replies]
    return f"; the last answers: {' | '.join(replies)}" if replies else ""


def _in_words(reply: object) -> str:
    if isinstance(reply, httpx.Response):
        return f"HTTP {reply.status_code}: {reply.text}"
    return repr(reply)


def observe(leg: Leg) -> Observation:
    """Return the observation of a leg: its kind and its parts. A pass counts only with at least one
    reply of the target.

    How does an exception become an observation? Of several exceptions the one counts that the case
    documents, else the first.

    A test that could not do its work because the server does not have the address is not
    applicable.
    """
    seen = _first_documented(leg) or _death_first(leg, _seen(leg, next(leg.errors, None)))
    observation = replace(seen, summary=mask(seen.summary), at_work=tuple(leg.at_work))
    path = unknown_address(leg.last_replies[-1]) if leg.last_replies else ""
    if path and _stopped_in_test(observation):
        lacks = Unsupported(f"it serves no {path} (HTTP 404)", lacks=f"route {path}")
        return _not_applicable(leg, lacks)
    return observation


def _stopped_in_test(observation: Observation) -> bool:
    """Return whether the test ended before its assertion: by a positive control or an error of its
    own."""
    return bool(observation.absent) or (observation.kind, observation.phase) == (
        Kind.EXCEPTION,
        TEST,
    )


def _death_first(leg: Leg, seen: Observation) -> Observation:
    """Return the observation as that of an engine's death where the log says so or a process is
    gone, whatever failed first: the engine may end only later. A failure that the case documents
    stays itself."""
    said = "\n".join(seen.parts.get(part, "") for part in (Part.LOG, Part.EXCEPTION, Part.ANSWER))
    is_of_running = seen.phase not in (*START_PHASES, TEST)
    if seen.kind not in (Kind.WRONG_RESULT, Kind.EXCEPTION) or not is_of_running:
        return seen
    if not (leg.dead or _DEATH.search(said)):
        return seen
    with contextlib.suppress(PatternError):  # the verdict says so
        if leg.symptom is not None and leg.symptom.is_shown_by(seen):
            return seen
    return replace(seen, kind=Kind.ENGINE_DEATH)


def _first_documented(leg: Leg) -> Observation | None:
    if leg.symptom is None or len(errors := [*leg.errors]) < 2:
        return None
    observations = (_seen(leg, error) for error in errors)
    try:
        return next(filter(leg.symptom.is_shown_by, observations), None)
    except PatternError:
        return None  # the verdict says so


def _seen(leg: Leg, error: BaseException | None) -> Observation:
    if leg.uncovered:
        names = ", ".join(leg.uncovered)
        why = (
            f"it reads {names}, whose change no proof would notice: move it into the case's folder"
        )
        return Observation(Kind.USAGE, TEST, why)
    if leg.missed_log and (error is None or isinstance(error, AssertionError)):
        why = "a part of the log that the test read had been left out: raise --vllm-limit log"
        return Observation(Kind.LIMIT, leg.phase, why)
    if isinstance(error, Unsupported):
        return _not_applicable(leg, error)
    if isinstance(error, ChildError):
        return Observation(error.kind, error.phase, _first_line(str(error)), error.parts)
    if isinstance(error, (UsageError, pytest.UsageError)):
        return Observation(Kind.USAGE, TEST, str(error))
    if isinstance(error, (AssertionError, pytest.fail.Exception)):
        # A wrong answer of an engine that has died meanwhile is its death, not what the test
        # asserts.
        kind = Kind.ENGINE_DEATH if leg.dead else Kind.WRONG_RESULT
        parts = {**leg.engine, Part.ASSERTION: mask(str(error))}
        return Observation(kind, leg.phase, _first_line(str(error)), parts)
    if error is not None:
        text = f"{type(error).__name__}: {error}"
        where = f"{leg.line}: " if leg.line else ""
        logged = leg.engine if isinstance(error, NotAtWork) else {}
        return Observation(
            Kind.EXCEPTION, TEST, where + _first_line(text), {**logged, Part.EXCEPTION: mask(text)}
        )
    if leg.skipped is not None:
        return Observation(Kind.NOT_APPLICABLE, leg.phase, leg.skipped)
    if leg.replies == 0:
        why = "the test passed without one reply from the target: that proves nothing"
        return Observation(Kind.USAGE, TEST, why)
    return Observation(Kind.PASSED, leg.phase, f"{leg.replies} replies")


def _not_applicable(leg: Leg, error: Unsupported) -> Observation:
    cause = error.cause if error.claim else None
    return Observation(Kind.NOT_APPLICABLE, leg.phase, str(error), claim=error.claim, cause=cause)


def target_of(item: pytest.Item) -> Target | None:
    """Return the environment of a test; None if it could not be used."""
    try:
        return session_of(item.config).target(environment_of(item))
    except (BuildError, ChildError):
        return None


def rewrite(item: pytest.Item, judged: JudgedLeg) -> list[pytest.TestReport]:
    """Return the test's reports with the verdict in the deciding one."""
    reports = judged.subject.reports
    deciding = max(reports, key=lambda r: (r.failed or r.skipped, r.when == "call"))
    case, verdict = judged.case, judged.decision.verdict
    message = f"{verdict.name}: {sanitize(judged.decision.reason)}"
    if verdict is not Verdict.FIXED and case.upstream:
        message += f"; upstream: {case.upstream[0]}; first fixed version: {case.first_fixed() or 'none known'}"
    setattr(deciding, ATTRIBUTE, _result(item, judged))
    facts = {"vllm_case": case.id, "vllm_verdict": verdict.name}
    if judged.target is not None:
        facts["vllm_device"] = judged.target.device
        facts["vllm_version"] = judged.target.versions.get("vllm", "?")
    deciding.user_properties += facts.items()
    if verdict is Verdict.REPRODUCED and not settings_of(item.config).fail_on_known:
        deciding.outcome = "skipped"
        deciding.wasxfail = message  # how pytest's own xfail marks a report
    elif verdict is Verdict.NOT_APPLICABLE:
        deciding.outcome = "skipped"
        deciding.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {message}")
    elif verdict is not Verdict.FIXED:
        deciding.outcome = "failed"
        before = f"\n\n{deciding.longreprtext}" if deciding.longrepr else ""
        deciding.longrepr = message + before
        if judged.control is not None and judged.control.error is not None:
            text = sanitize(str(judged.control.error))[:MAX_SHOWN]
            deciding.sections.append(("control leg", text))
    return reports


def _result(item: pytest.Item, judged: JudgedLeg) -> TestResult:
    target, subject, case = judged.target, judged.subject, judged.case
    name = target.name if target else environment_of(item)
    command = f"pytest {test_id(item)!r} --vllm-env={name!r}"
    command += f" --vllm-device {target.device}" if target else ""
    error_text = mask(str(subject.error)) if subject.error is not None else ""
    minimized = f"\n\n---- minimized ----\n{subject.minimized}" if subject.minimized else ""
    control = judged.control_observed
    refused = (
        judged.decision.verdict is Verdict.REPRODUCED and settings_of(item.config).fail_on_known
    )
    return TestResult(
        case_id=case.id,
        test=test_id(item),
        variant=judged.marked.variant,
        verdict=judged.decision.verdict,
        reason=mask(judged.decision.reason),
        device=target.device if target else "unknown",
        environment=name,
        versions=target.versions if target else {},
        gpu=subject.gpu,
        variables={name: mask(value) for name, value in recorded_variables().items()},
        started_at=subject.started_at,
        duration_s=round(time.monotonic() - subject.started, 3),  # the date may be set meanwhile
        symptom="" if judged.observed.kind is Kind.PASSED else _first_line(judged.observed.summary),
        dossier=error_text + minimized,
        command=command,
        control="" if control is None else "passed" if control.kind is Kind.PASSED else "failed",
        match=judged.decision.match,
        observation=judged.observed,
        code=code_fingerprint(case.directory),
        not_expected_because="--vllm-fail-on-known" if refused else "",
        decides=target is None or case.can_show(target.versions, judged.marked.variant),
        cause=judged.decision.cause,
        same_as=judged.same_as,
        held=subject.error.containers if isinstance(subject.error, HeldRequests) else (),
    )


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")[:500]
