"""How grave a documented failure is: one closed set, told from what the case file already says."""

from __future__ import annotations

import enum
from types import MappingProxyType

from ..cases.model import Case
from ..errors import Kind


class Severity(enum.StrEnum):
    """The gravest first."""

    ENGINE_DEATH = "engine death"
    """A process of the engine ends: everybody's requests are lost."""
    HANG = "hang"
    """Something is waited for that never comes."""
    WRONG_RESULT = "wrong result"
    """An answer that is not what was asked for, and nobody is told."""
    REFUSED = "refused"
    """What should work is answered with an error."""
    LEAK = "leak"
    """Something stays behind that should have gone."""

    @property
    def rank(self) -> int:
        """0 for the gravest."""
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
"""What a test can only assert, and is no wrong answer: these families say more than the symptom's kind."""


def severity(case: Case) -> Severity:
    """The gravest form in which ``case`` shows."""
    by_family = _BY_FAMILY.get(case.family)
    return by_family or min((_BY_KIND[kind] for kind in case.symptom.kinds), key=lambda each: each.rank)
