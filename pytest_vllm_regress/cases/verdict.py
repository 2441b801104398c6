"""From what was installed and what was seen to a verdict. Pure: no clock, no files, no target."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable

from ..errors import Kind
from ..util.patterns import PatternTooSlow
from .observation import Observation
from .symptom import Match, Symptom

MAX_EXCERPT = 200


class Verdict(enum.Enum):
    """What one test says about one installation."""

    REPRODUCED = "REPRODUCED"
    FIXED = "FIXED"
    REGRESSED = "REGRESSED"
    UNEXPECTEDLY_FIXED = "UNEXPECTEDLY_FIXED"
    NOT_APPLICABLE = "NOT_APPLICABLE"
    INCONCLUSIVE = "INCONCLUSIVE"

    @property
    def expected(self) -> bool:
        """The case file foresaw this."""
        return self in _EXPECTED


_EXPECTED = frozenset({Verdict.REPRODUCED, Verdict.FIXED, Verdict.NOT_APPLICABLE})
_PRIORITY = (
    Verdict.INCONCLUSIVE,
    Verdict.REGRESSED,
    Verdict.UNEXPECTEDLY_FIXED,
    Verdict.REPRODUCED,
    Verdict.FIXED,
    Verdict.NOT_APPLICABLE,
)


@dataclasses.dataclass(frozen=True)
class Decision:
    """A verdict, why, and where the symptom was found."""

    verdict: Verdict
    reason: str
    match: Match | None = None


def decide(
    affected: bool,
    symptom: Symptom,
    observed: Observation,
    control: Observation | None = None,
    *,
    declared: str = "",
) -> Decision:
    """The table of verdicts. ``control`` is the control leg, None where none was run; ``declared`` what the case says that it leaves out."""
    if observed.kind is Kind.USAGE:
        return Decision(Verdict.INCONCLUSIVE, f"the test asks for something impossible: {observed.summary}")
    if observed.kind is Kind.NOT_APPLICABLE:
        if observed.claim:
            return Decision(Verdict.NOT_APPLICABLE, observed.summary or observed.claim)
        said = observed.summary or "nothing"
        return Decision(
            Verdict.INCONCLUSIVE, f"skipped without saying since, until or where it can be shown; it said: {said}"
        )
    if observed.absent:
        return Decision(Verdict.INCONCLUSIVE, f"what the case is about was not at work: {observed.absent}")
    if control is not None and control.kind is not Kind.PASSED:
        return Decision(Verdict.INCONCLUSIVE, f"the control leg did not pass either: {_seen(control)}")
    if observed.kind is Kind.PASSED:
        if affected:
            return Decision(Verdict.UNEXPECTEDLY_FIXED, "an affected installation passed")
        return Decision(Verdict.FIXED, "passed")
    try:
        match = symptom.find(observed)
    except PatternTooSlow as error:
        return Decision(Verdict.INCONCLUSIVE, f"{error}; seen: {_seen(observed)}")
    if mismatch := _mismatch(symptom, observed, match):
        reason = f"another failure than the documented one: {mismatch}; seen: {_seen(observed)}"
        return Decision(Verdict.INCONCLUSIVE, reason)
    assert match is not None
    found = f"the documented {observed.kind} in phase {observed.phase}, {_where(match)}"
    if declared and control is None:
        return Decision(
            Verdict.INCONCLUSIVE,
            f"the control leg (without {declared}) was not run, so nothing is proven; seen: {found}",
            match,
        )
    if affected:
        return Decision(Verdict.REPRODUCED, found, match)
    return Decision(Verdict.REGRESSED, f"an installation that is not affected shows {found}", match)


def combine(verdicts: Iterable[Verdict]) -> Verdict:
    """One verdict for several tests of a case in one environment: the worst. Nothing seen is INCONCLUSIVE."""
    seen = set(verdicts)
    return next((verdict for verdict in _PRIORITY if verdict in seen), Verdict.INCONCLUSIVE)


def _mismatch(symptom: Symptom, observed: Observation, match: Match | None) -> str:
    faults = []
    if observed.kind not in symptom.kinds:
        faults.append(f"kind is {observed.kind}, not {symptom.kind}")
    if observed.phase not in symptom.phases:
        faults.append(f"phase is {observed.phase}, not {' or '.join(symptom.phases)}")
    if match is None:
        parts = ", ".join(symptom.parts_for(observed.kind)) or "nothing that counts"
        faults.append(f"{excerpt(symptom.pattern)!r} does not match in {parts}")
    return ", and ".join(faults)


def _where(match: Match) -> str:
    text = excerpt(match.text) or excerpt(match.line)
    return f"found in {match.part}, line {match.number}: {text}"


def _seen(observed: Observation) -> str:
    return f"{observed.kind} in phase {observed.phase}: {excerpt(observed.summary) or 'no text'}"


def excerpt(text: str, limit: int = MAX_EXCERPT) -> str:
    """``text`` on one line, its beginning and end when it is longer than ``limit`` characters."""
    line = re.sub(r"\s+", " ", text).strip()
    if len(line) <= limit:
        return line
    tail = limit // 3
    return f"{line[: limit - tail - 5]} ... {line[-tail:]}"
