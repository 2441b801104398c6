"""``--vllm-minimize``: run a failed test again on smaller engines, and report the smallest that
still fails and the largest that works.

vLLM's own advice is to verify without parallelism first and then add it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pytest

from ..cases.observation import Observation
from ..engines.running import SchemaFilter
from ..engines.spec import EngineSpec
from ..errors import Kind, RemoteError, Unsupported
from ..util.masking import mask
from ..util.text import render_text
from .leg import Leg, sanitize
from .session import session_of
from .state import renew_timeout, settings_of
from .verdicts import observe

MAX_TEXT = 20000


SCHEMA = "schema"
"""The feature that is left out by taking the schema out of requests, too."""
FEATURES: Mapping[str, Mapping[str, Any]] = {
    SCHEMA: {"structured_output_backend": "auto"},
    "tokenizer pool": {"tokenizer_pool_size": None, "tokenizer_pool_extra_config": None},
    "pipeline parallel": {"pipeline_parallel_size": 1},
    "tensor parallel": {"tensor_parallel_size": 1},
    "data parallel": {"data_parallel_size": 1},
    "executor": {"executor": "auto"},
}
"""Features in the order in which they are left out, with the EngineSpec fields that do it."""


@dataclass(frozen=True)
class AttemptOutcome:
    """Outcome of a test without some features: it fails the same way, works, or neither (another
    failure, or unsupported)."""

    status: str
    text: str


@dataclass(frozen=True)
class Reduction:
    """Every set of features that was tried, in order, with its outcome.

    ``smallest`` still fails, ``largest`` works (None: none works).
    """

    tried: Mapping[frozenset[str], AttemptOutcome]
    smallest: frozenset[str]
    largest: frozenset[str] | None


def features(spec: EngineSpec, *, schema: bool) -> tuple[str, ...]:
    """Return the features of this spec that can be left out.

    ``schema``: the test's requests have one.
    """
    return tuple(
        name
        for name, changes in FEATURES.items()
        if (schema if name == SCHEMA else spec.replace(**changes) != spec)
    )


def walk(
    features: Sequence[str],
    failed: AttemptOutcome,
    attempt: Callable[[frozenset[str]], AttemptOutcome],
) -> Reduction:
    """What does ``--vllm-minimize`` try? Leave out every feature that the failure does not need;
    then add features to the smallest working engine while it works.

    ``attempt`` runs the test without the given features. No set is tried twice.
    """
    everything = frozenset(features)
    tried = {everything: failed}

    def outcome(kept: frozenset[str]) -> AttemptOutcome:
        if kept not in tried:
            tried[kept] = attempt(everything - kept)
        return tried[kept]

    smallest = everything
    for feature in features:
        if outcome(smallest - {feature}).status == "fails":
            smallest -= {feature}
    working = [kept for kept, result in tried.items() if result.status == "works"]
    if not working and smallest and outcome(frozenset()).status == "works":
        working = [frozenset()]
    largest = max(working, key=len, default=None)
    for feature in reversed(features):
        if largest is not None and outcome(largest | {feature}).status == "works":
            largest |= {feature}
    return Reduction(tried, smallest, largest)


def describe(spec: EngineSpec, reduction: Reduction) -> str:
    """Return the report: both engines, every set of features that was tried, and the output at both
    ends."""
    everything = next(iter(reduction.tried))
    words = {kept: _spec(spec, everything - kept) for kept in reduction.tried}
    return render_text("minimized.txt", words=words, **vars(reduction)).rstrip("\n")


def without(features: Iterable[str]) -> dict[str, Any]:
    """Return the EngineSpec fields that leave these features out."""
    return {field: value for name in features for field, value in FEATURES[name].items()}


def _spec(spec: EngineSpec, left_out: frozenset[str]) -> str:
    small, default = spec.replace(**without(left_out)), EngineSpec()
    arguments = [
        f"{field.name}={value}"
        for field in fields(small)
        if (value := getattr(small, field.name)) != getattr(default, field.name)
    ]
    if SCHEMA in left_out:
        arguments.append("requests without a schema")
    return ", ".join(arguments) or "one process, all defaults"


def minimize(
    item: pytest.Item, subject: Leg, failure: Observation, run_leg: Callable[[Leg], Leg]
) -> str:
    """Return the report; empty if the test passed, is not applicable, or has no engine.

    ``run_leg`` runs the test and fills the leg.
    """
    if (
        not settings_of(item.config).minimize
        or subject.error is None
        or isinstance(subject.error, Unsupported)
        or subject.spec is None
    ):
        return ""
    # Without its schema an output is another one: that says nothing about a wrong result.
    present = features(
        subject.spec, schema=subject.schemas.used and failure.kind is not Kind.WRONG_RESULT
    )
    progress = session_of(item.config).progress

    def attempt(left_out: frozenset[str]) -> AttemptOutcome:
        renew_timeout(item)
        schemas = SchemaFilter(drop=SCHEMA in left_out)
        leg = run_leg(Leg(changes=without(left_out), schemas=schemas, smaller_engine=True))
        outcome = _outcome(failure, subject, leg)
        names = ", ".join(name for name in FEATURES if name in left_out)
        progress(f"{item.name} without {names}: {outcome.status}")
        return outcome

    reduction = walk(present, AttemptOutcome("fails", _text(subject)), attempt)
    return mask(describe(subject.spec, reduction))


def show(reports: list[pytest.TestReport], text: str) -> None:
    """Add the report to the report of the failure."""
    if text:
        next((report for report in reports if report.failed), reports[0]).sections.append(
            ("minimized", sanitize(text))
        )


def _outcome(failure: Observation, subject: Leg, leg: Leg) -> AttemptOutcome:
    observation = observe(leg)
    if observation.kind is Kind.PASSED:
        return AttemptOutcome("works", (leg.dossier or observation.summary)[:MAX_TEXT])
    if _signature(failure, subject) == _signature(observation, leg):
        return AttemptOutcome("fails", _text(leg))
    how = f"fails otherwise: {observation.kind} in phase {observation.phase}"
    if observation.kind is Kind.NOT_APPLICABLE:
        how = "unsupported"
    first = observation.summary.partition("\n")[0]
    return AttemptOutcome(f"{how}: {first[:200]}", _text(leg))


def _text(leg: Leg) -> str:
    return str(leg.error or leg.skipped or "")[:MAX_TEXT]


def _signature(observation: Observation, leg: Leg) -> tuple[str, ...]:
    """Return what two failures must share to count as the same."""
    type_name = leg.error.type_name if isinstance(leg.error, RemoteError) else ""
    return observation.kind, observation.phase, type(leg.error).__name__, type_name
