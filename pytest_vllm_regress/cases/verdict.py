"""Verdicts from installed versions and observations.

Pure: no clock, no files, no target, so that a stored result can be judged again.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import Cause, Kind, Part
from ..util.patterns import PatternError
from .model import Case, Symptom
from .nearest import difference
from .observation import TEST, Match, Observation

MAX_EXCERPT = 200
START_PHASES = ("import", "start", "ready")


class Verdict(enum.Enum):
    """Verdict of one test on one installation.

    ``expected``: the case file predicts it. ``shown``: whether the documented failure was shown;
    None if the verdict does not tell. ``symbol``, ``ascii_symbol``, ``short_word``: for tables.
    """

    REPRODUCED = "REPRODUCED", True, True, "●", "*", "repro"
    FIXED = "FIXED", True, False, "✓", "+", "fixed"
    REGRESSED = "REGRESSED", False, True, "✗", "x", "regressed"
    UNEXPECTEDLY_FIXED = "UNEXPECTEDLY_FIXED", False, False, "!", "!", "unexp. fixed"
    NOT_APPLICABLE = "NOT_APPLICABLE", True, None, "○", "-", "n/a"
    INCONCLUSIVE = "INCONCLUSIVE", False, None, "?", "?", "unclear"

    expected: bool
    shown: bool | None
    symbol: str
    ascii_symbol: str
    short_word: str

    def __new__(cls, value: object, *facts: object) -> Verdict:
        member = object.__new__(cls)
        member._value_ = value
        names = ("expected", "shown", "symbol", "ascii_symbol", "short_word")
        vars(member).update(zip(names, facts, strict=True))
        return member


_PRIORITY = (
    Verdict.INCONCLUSIVE,
    Verdict.REGRESSED,
    Verdict.UNEXPECTEDLY_FIXED,
    Verdict.REPRODUCED,
    Verdict.FIXED,
    Verdict.NOT_APPLICABLE,
)


@dataclass(frozen=True)
class Decision:
    """A verdict, its reason, where the symptom was found, and what kind of reason makes it
    NOT_APPLICABLE (None for all other verdicts)."""

    verdict: Verdict
    reason: str
    match: Match | None = None
    cause: Cause | None = None


def decide(
    affected: bool,
    symptom: Symptom,
    observed: Observation,
    control: Observation | None = None,
    *,
    declared: str = "",
) -> Decision:
    """Decide the verdict.

    When is a verdict NOT_APPLICABLE? Only with a claim of the test (since, until, device, needs or
    refused_by); a skip without one is INCONCLUSIVE. Also if nothing starts, as another case
    documents for this version (``name_others``).

    What if the control leg fails too? Then the verdict is INCONCLUSIVE.

    ``control``: the control leg, None if none was run; ``declared``: what the case says that leg
    leaves out.
    """
    if observed.kind is Kind.NOT_APPLICABLE and observed.claim:
        return Decision(
            Verdict.NOT_APPLICABLE, observed.summary or observed.claim, cause=observed.cause
        )
    if why := _proves_nothing(observed, control):
        return Decision(Verdict.INCONCLUSIVE, why)
    if observed.kind is Kind.PASSED:
        if affected:
            return Decision(Verdict.UNEXPECTEDLY_FIXED, "an affected installation passed")
        return Decision(Verdict.FIXED, "passed")
    try:
        match = symptom.find(observed)
        mismatch = _mismatch(symptom, observed, match)
    except PatternError as error:
        return Decision(Verdict.INCONCLUSIVE, f"{error}; seen: {_seen(observed)}")
    if mismatch:
        reason = f"a different failure than the documented one: {mismatch}; seen: {_seen(observed)}"
        return Decision(Verdict.INCONCLUSIVE, reason)
    assert match is not None
    failure = f"the documented {observed.kind} in phase {observed.phase}, {_where(match)}"
    if declared and control is None:
        return Decision(
            Verdict.INCONCLUSIVE,
            f"the control leg (without {declared}) was not run, so nothing is proven; seen: {failure}",
            match,
        )
    if affected:
        return Decision(Verdict.REPRODUCED, failure, match)
    return Decision(
        Verdict.REGRESSED, f"an installation that is not affected shows {failure}", match
    )


def _proves_nothing(observed: Observation, control: Observation | None) -> str:
    """Return why an observation proves nothing, whatever its text; empty if it may prove
    something."""
    if observed.kind is Kind.USAGE:
        return f"the test requests something impossible: {observed.summary}"
    if observed.kind is Kind.NOT_APPLICABLE:
        return (
            "skipped without naming the versions or devices that can show it; the message was: "
            + (observed.summary or "nothing")
        )
    if observed.absent:
        return f"the mechanism of the case was not at work: {observed.absent}"
    if observed.kind is Kind.EXCEPTION and observed.phase == TEST:
        return f"the test itself failed: {excerpt(observed.summary)}"
    if control is not None and control.kind is not Kind.PASSED:
        started = "" if observed.phase not in START_PHASES else "nothing was ready for the test: "
        return f"{started}{_seen(observed)}; the control leg failed too: {_seen(control)}"
    return ""


def judge_observation(
    case: Case,
    variant: str | None,
    versions: Mapping[str, str],
    observed: Observation,
    control: Observation | None = None,
) -> Decision:
    """Judge one leg of a test: the verdict of ``case`` on ``versions`` (distribution name to
    version), with the reason and the range that decided."""
    affectedness = case.is_affected(versions, variant)
    decision = decide(
        affectedness.affected, case.symptom, observed, control, declared=case.control.omits
    )
    reason = f"{decision.reason} ({affectedness.reason})"
    if decision.verdict is Verdict.REGRESSED and affectedness.below_range:
        reason = f"it fails on a version below the range, so the range begins too late: {reason}"
    return replace(decision, reason=reason)


def cases_that_document(
    cases: Iterable[Case], versions: Mapping[str, str], observed: Observation
) -> tuple[str, ...]:
    """Return the ids of the cases that affect ``versions`` and whose symptom matches ``observed``.

    That nothing was answered is no text: it is the same for every hang.
    """
    return tuple(
        case.id
        for case in cases
        if case.is_affected(versions)
        and (match := decide(True, case.symptom, observed).match) is not None
        and (observed.kind is not Kind.HANG or match.part is not Part.ANSWER)
    )


def name_others(decision: Decision, observed: Observation, others: Sequence[str]) -> Decision:
    """Add to an INCONCLUSIVE decision the names of the cases (``others``) that document the failure
    that was seen instead.

    If their failure prevents the start, the judged case cannot be shown here, and the verdict is
    NOT_APPLICABLE instead. A hang does not count, because silence has many causes.
    """
    names = ", ".join(others)
    if observed.phase in START_PHASES and observed.kind is not Kind.HANG:
        return Decision(
            Verdict.NOT_APPLICABLE,
            f"nothing starts here because of {names}; seen: {_seen(observed)}",
            cause=Cause.FAILURE,
        )
    return replace(decision, reason=f"{decision.reason}; this looks like {names}")


def combine(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst verdict of several tests of a case in one environment; INCONCLUSIVE without
    any."""
    distinct = set(verdicts)
    return next((verdict for verdict in _PRIORITY if verdict in distinct), Verdict.INCONCLUSIVE)


def _mismatch(symptom: Symptom, observed: Observation, match: Match | None) -> str:
    differences = []
    if observed.kind not in symptom.kinds:
        differences.append(f"kind is {observed.kind}, not {symptom.kind}")
    if observed.phase not in symptom.phases:
        differences.append(f"phase is {observed.phase}, not {' or '.join(symptom.phases)}")
    for pattern in symptom.missing(observed) if match is None else ():
        parts = symptom.parts_for(observed.kind)
        near = difference(pattern, observed, parts)
        names = ", ".join(parts) or "any part that is searched"
        differences.append(
            f"{excerpt(pattern)!r} does not match in {names}{f' ({near})' if near else ''}"
        )
    return ", and ".join(differences)


def _where(match: Match) -> str:
    text = excerpt(match.text) or excerpt(match.line)
    return f"found in {match.part}, line {match.number}: {text}"


def _seen(observed: Observation) -> str:
    return f"{observed.kind} in phase {observed.phase}: {excerpt(observed.summary) or 'no text'}"


def excerpt(text: str, limit: int = MAX_EXCERPT) -> str:
    """Return ``text`` on one line; the middle is cut out if it is longer than ``limit`` characters."""
    line = re.sub(r"\s+", " ", text).strip()
    if len(line) <= limit:
        return line
    tail = limit // 3
    return f"{line[: limit - tail - 5]} ... {line[-tail:]}"
