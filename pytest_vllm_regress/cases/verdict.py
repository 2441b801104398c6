"""From what was installed and what was seen to a verdict. Pure: no clock, no files, no target."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable

from .model import Symptom

KINDS = ("passed", "exception", "hang", "crash", "wrong-result", "not-applicable", "limit")
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
class Observation:
    """What one leg did. ``kind`` is one of ``KINDS``; ``text`` is what the symptom's pattern is searched in."""

    kind: str
    phase: str
    text: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"observation kind {self.kind!r} is not one of {', '.join(KINDS)}")


@dataclasses.dataclass(frozen=True)
class Decision:
    """A verdict and why."""

    verdict: Verdict
    reason: str


def decide(affected: bool, symptom: Symptom, observed: Observation, control: Observation | None = None) -> Decision:
    """The table of verdicts. ``control`` is the control leg, None where none was run."""
    if observed.kind == "not-applicable":
        return Decision(Verdict.NOT_APPLICABLE, observed.text or "the version or the device does not have this")
    if control is not None and control.kind != "passed":
        return Decision(Verdict.INCONCLUSIVE, f"the control leg did not pass either: {_seen(control)}")
    if observed.kind == "passed":
        if affected:
            return Decision(Verdict.UNEXPECTEDLY_FIXED, "an affected installation passed")
        return Decision(Verdict.FIXED, "passed")
    mismatch = _mismatch(symptom, observed)
    if mismatch:
        reason = f"another failure than the documented one: {mismatch}; seen: {_seen(observed)}"
        return Decision(Verdict.INCONCLUSIVE, reason)
    found = f"the documented {symptom.kind} in phase {observed.phase}: {_matched(symptom, observed.text)}"
    if affected:
        return Decision(Verdict.REPRODUCED, found)
    return Decision(Verdict.REGRESSED, f"an installation that is not affected shows {found}")


def combine(verdicts: Iterable[Verdict]) -> Verdict:
    """One verdict for several tests of a case in one environment: the worst. Nothing seen is INCONCLUSIVE."""
    seen = set(verdicts)
    return next((verdict for verdict in _PRIORITY if verdict in seen), Verdict.INCONCLUSIVE)


def _mismatch(symptom: Symptom, observed: Observation) -> str:
    faults = []
    if observed.kind != symptom.kind:
        faults.append(f"kind is {observed.kind}, not {symptom.kind}")
    if observed.phase not in symptom.phases:
        faults.append(f"phase is {observed.phase}, not {' or '.join(symptom.phases)}")
    if symptom.search(observed.text) is None:
        faults.append(f"its text does not match {excerpt(symptom.pattern)!r}")
    return ", and ".join(faults)


def _matched(symptom: Symptom, text: str) -> str:
    match = symptom.search(text)
    return excerpt(match.group() if match else "") or excerpt(text)


def _seen(observed: Observation) -> str:
    return f"{observed.kind} in phase {observed.phase}: {excerpt(observed.text) or 'no text'}"


def excerpt(text: str, limit: int = MAX_EXCERPT) -> str:
    """``text`` on one line, its beginning and end when it is longer than ``limit`` characters."""
    line = re.sub(r"\s+", " ", text).strip()
    if len(line) <= limit:
        return line
    tail = limit // 3
    return f"{line[: limit - tail - 5]} ... {line[-tail:]}"
