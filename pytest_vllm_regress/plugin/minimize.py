"""``--vllm-minimize``: a failed test run again on smaller engines, and what that says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..cases.observation import Observation
from ..engines.schema_filter import SchemaFilter
from ..errors import Kind, RemoteError, Unsupported
from ..util.masking import mask
from . import judge, ladder
from .evidence import Evidence, harmless
from .ladder import Feature, Outcome
from .private import renew_timeout
from .session import session_of
from .stash import settings_of

MAX_TEXT = 20000


def minimize(
    item: pytest.Item, subject: Evidence, failure: Observation, run_leg: Callable[[Evidence], Evidence]
) -> str:
    """The report of the ladder; empty where the test passed, is not applicable, or has no engine. ``run_leg`` fills evidence."""
    if (
        not settings_of(item.config).minimize
        or subject.error is None
        or isinstance(subject.error, Unsupported)
        or subject.spec is None
    ):
        return ""
    # Without its schema an output is another one: that says nothing about a wrong result.
    features = ladder.features(subject.spec, schema=subject.schemas.seen and failure.kind is not Kind.WRONG_RESULT)
    progress = session_of(item.config).progress

    def attempt(left_out: tuple[Feature, ...]) -> Outcome:
        renew_timeout(item)
        schemas = SchemaFilter(drop=any(feature.plain for feature in left_out))
        evidence = run_leg(Evidence(changes=ladder.without(left_out), schemas=schemas, feature=True))
        outcome = _outcome(failure, subject, evidence)
        progress(f"{item.name} without {', '.join(feature.name for feature in left_out)}: {outcome.seen}")
        return outcome

    found = ladder.walk(features, Outcome("fails", _text(subject)), attempt)
    return mask(ladder.describe(subject.spec, features, found))


def show(reports: list[pytest.TestReport], text: str) -> None:
    """Put the ladder's report beside the failure's own."""
    if text:
        next((each for each in reports if each.failed), reports[0]).sections.append(("minimized", harmless(text)))


def _outcome(failure: Observation, subject: Evidence, evidence: Evidence) -> Outcome:
    seen = judge.observe(evidence)
    if seen.kind is Kind.PASSED:
        return Outcome("works", (evidence.dossier or seen.summary)[:MAX_TEXT])
    if _signature(failure, subject) == _signature(seen, evidence):
        return Outcome("fails", _text(evidence))
    how = "unsupported" if seen.kind is Kind.NOT_APPLICABLE else f"fails otherwise: {seen.kind} in phase {seen.phase}"
    return Outcome(f"{how}: {seen.summary.partition(chr(10))[0][:200]}", _text(evidence))


def _text(evidence: Evidence) -> str:
    return str(evidence.error or evidence.skipped or "")[:MAX_TEXT]


def _signature(seen: Observation, evidence: Evidence) -> tuple[str, ...]:
    """What two failures must share to be taken for one."""
    error = evidence.error
    return (seen.kind, seen.phase, type(error).__name__, error.type_name if isinstance(error, RemoteError) else "")
