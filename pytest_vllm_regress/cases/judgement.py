"""One leg of one test judged by its case: what was installed and seen, to a verdict. Pure, so that it can be done again from what is stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from .model import Case
from .observation import Observation
from .verdict import Decision, Verdict, decide


def judge(
    case: Case,
    variant: str | None,
    versions: Mapping[str, str],
    observed: Observation,
    control: Observation | None = None,
) -> Decision:
    """The verdict of ``case`` on an installation (distribution name to version), with the reason and the line of the case file that decided."""
    affectedness = case.is_affected(versions, variant)
    decision = decide(affectedness.affected, case.symptom, observed, control, declared=case.control.omits)
    reason = f"{decision.reason} ({affectedness.reason})"
    if decision.verdict is Verdict.REGRESSED and affectedness.before:
        reason = f"it shows on a version before the range, so the range begins too late: {reason}"
    return dataclasses.replace(decision, reason=reason)
