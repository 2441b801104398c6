"""Severity of a documented failure, derived from its case file."""

from __future__ import annotations

import enum
from types import MappingProxyType

from ...cases.model import Case
from ...errors import Kind


class Severity(enum.StrEnum):
    """The gravest first."""

    ENGINE_DEATH = "engine death"
    """A process of the engine ends, and all requests are lost."""
    HANG = "hang"
    """A wait that never ends."""
    WRONG_RESULT = "wrong result"
    """A wrong answer without an error."""
    REFUSED = "refused"
    """A valid request is answered with an error."""
    LEAK = "leak"
    """A resource is not released."""

    @property
    def rank(self) -> int:
        """0 for the most severe."""
        return list(Severity).index(self)


_BY_KIND = MappingProxyType(
    {
        Kind.ENGINE_DEATH: Severity.ENGINE_DEATH,
        Kind.CRASH: Severity.ENGINE_DEATH,
        Kind.HANG: Severity.HANG,
        Kind.WRONG_RESULT: Severity.WRONG_RESULT,
        Kind.EXCEPTION: Severity.REFUSED,
    }
)
_BY_FAMILY = MappingProxyType({"leak": Severity.LEAK, "wrong-status": Severity.REFUSED})
"""Families that override the symptom's kind: their tests fail with an assertion, but the answer is
not wrong."""


def severity(case: Case) -> Severity:
    """Return the severity of the gravest kind of ``case``."""
    by_family = _BY_FAMILY.get(case.family)
    return by_family or min(
        (_BY_KIND[kind] for kind in case.symptom.kinds), key=lambda candidate: candidate.rank
    )
