"""``--vllm-minimize``: run a failed test again on smaller engines and report what they show."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..cases.observation import Observation
from ..engines.running import SchemaFilter
from ..errors import Kind, RemoteError, Unsupported
from ..util.masking import mask
from . import ladder, verdicts
from .evidence import Evidence, sanitize
from .ladder import Feature, TrialOutcome
from .private import renew_timeout
from .session import session_of
from .stash import settings_of

MAX_TEXT = 20000


def minimize(
    item: pytest.Item,
    subject: Evidence,
    failure: Observation,
    run_leg: Callable[[Evidence], Evidence],
) -> str:
    """Return the report; empty if the test passed, is not applicable, or has no engine.

    ``run_leg`` runs the test and fills the evidence.
    """
    if (
        not settings_of(item.config).minimize
        or subject.error is None
        or isinstance(subject.error, Unsupported)
        or subject.spec is None
    ):
        return ""
    # Without its schema an output is another one: that says nothing about a wrong result.
    features = ladder.features(
        subject.spec, schema=subject.schemas.used and failure.kind is not Kind.WRONG_RESULT
    )
    progress = session_of(item.config).progress

    def attempt(left_out: tuple[Feature, ...]) -> TrialOutcome:
        renew_timeout(item)
        schemas = SchemaFilter(drop=any(feature.plain for feature in left_out))
        evidence = run_leg(
            Evidence(changes=ladder.without(left_out), schemas=schemas, smaller_engine=True)
        )
        outcome = _outcome(failure, subject, evidence)
        progress(
            f"{item.name} without {', '.join(feature.name for feature in left_out)}: {outcome.status}"
        )
        return outcome

    reduction = ladder.walk(features, TrialOutcome("fails", _text(subject)), attempt)
    return mask(ladder.describe(subject.spec, features, reduction))


def show(reports: list[pytest.TestReport], text: str) -> None:
    """Add the report to the report of the failure."""
    if text:
        next((report for report in reports if report.failed), reports[0]).sections.append(
            ("minimized", sanitize(text))
        )


def _outcome(failure: Observation, subject: Evidence, evidence: Evidence) -> TrialOutcome:
    observation = verdicts.observe(evidence)
    if observation.kind is Kind.PASSED:
        return TrialOutcome("works", (evidence.dossier or observation.summary)[:MAX_TEXT])
    if _signature(failure, subject) == _signature(observation, evidence):
        return TrialOutcome("fails", _text(evidence))
    how = (
        "unsupported"
        if observation.kind is Kind.NOT_APPLICABLE
        else f"fails otherwise: {observation.kind} in phase {observation.phase}"
    )
    return TrialOutcome(
        f"{how}: {observation.summary.partition(chr(10))[0][:200]}", _text(evidence)
    )


def _text(evidence: Evidence) -> str:
    return str(evidence.error or evidence.skipped or "")[:MAX_TEXT]


def _signature(observation: Observation, evidence: Evidence) -> tuple[str, ...]:
    """Return what two failures must share to count as the same."""
    error = evidence.error
    return (
        observation.kind,
        observation.phase,
        type(error).__name__,
        error.type_name if isinstance(error, RemoteError) else "",
    )
