"""Severity of a documented failure, derived from its case file."""

from __future__ import annotations

import enum
from typing import Any

from ...cases.model import Case, fields_of
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


_BY_KIND = {
    Kind.ENGINE_DEATH: Severity.ENGINE_DEATH,
    Kind.CRASH: Severity.ENGINE_DEATH,
    Kind.HANG: Severity.HANG,
    Kind.WRONG_RESULT: Severity.WRONG_RESULT,
    Kind.EXCEPTION: Severity.REFUSED,
}
_BY_FAMILY = {"leak": Severity.LEAK, "wrong-status": Severity.REFUSED}
"""Families that override the symptom's kind: their tests fail with an assertion, but the answer is
not wrong."""


def severity(case: Case) -> Severity:
    """Return the severity of the gravest kind of ``case``."""
    by_kind = (_BY_KIND[kind] for kind in case.symptom.kinds)
    return _BY_FAMILY.get(case.family) or min(by_kind, key=lambda candidate: candidate.rank)


def case_fields(case: Case, *names: str) -> dict[str, Any]:
    """Return the id of a case and these of its fields as plain values, its severity among them."""
    fields = {**fields_of(case), "severity": severity(case).value}
    return {"case": case.id, **{name: fields[name] for name in names}}
