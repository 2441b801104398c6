"""``--vllm-minimize``: run a failed test again on smaller engines, and report the smallest that
still fails and the largest that works.

vLLM's own advice is to verify without parallelism first and then add it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ..cases.observation import Observation
from ..engines.schema_filter import SchemaFilter
from ..engines.spec import EngineSpec
from ..errors import Kind, RemoteError, Unsupported
from ..util.masking import mask
from .leg import Leg, sanitize
from .session import session_of
from .state import renew_timeout, settings_of
from .verdicts import observe

MAX_TEXT = 20000


@dataclasses.dataclass(frozen=True)
class EngineFeature:
    """One feature that can be left out:

    ``changes`` are EngineSpec fields; ``plain`` takes the schema out of requests instead.
    """

    name: str
    changes: Mapping[str, Any]
    plain: bool = False


FEATURES = (
    EngineFeature("schema", {"structured_output_backend": "auto"}, plain=True),
    EngineFeature(
        "tokenizer pool", {"tokenizer_pool_size": None, "tokenizer_pool_extra_config": None}
    ),
    EngineFeature("pipeline parallel", {"pipeline_parallel_size": 1}),
    EngineFeature("tensor parallel", {"tensor_parallel_size": 1}),
    EngineFeature("data parallel", {"data_parallel_size": 1}),
    EngineFeature("executor", {"executor": "auto"}),
)
"""Features in the order in which they are left out."""


@dataclasses.dataclass(frozen=True)
class AttemptOutcome:
    """Outcome of a test without some features: it fails the same way, works, or neither (another
    failure, or unsupported)."""

    status: str
    text: str

    @property
    def fails(self) -> bool:
        return self.status == "fails"

    @property
    def works(self) -> bool:
        return self.status == "works"


@dataclasses.dataclass(frozen=True)
class Reduction:
    """Every set of features that was tried, in order, with its outcome.

    ``smallest`` still fails, ``largest`` works (None: none works).
    """

    tried: Mapping[frozenset[str], AttemptOutcome]
    smallest: frozenset[str]
    largest: frozenset[str] | None


def features(spec: EngineSpec, *, schema: bool) -> tuple[EngineFeature, ...]:
    """Return the features of this spec that can be left out.

    ``schema``: the test's requests have one.
    """
    return tuple(
        feature
        for feature in FEATURES
        if (
            schema
            if feature.plain
            else any(getattr(spec, name) != value for name, value in feature.changes.items())
        )
    )


def walk(
    features: tuple[EngineFeature, ...],
    failed: AttemptOutcome,
    attempt: Callable[[tuple[EngineFeature, ...]], AttemptOutcome],
) -> Reduction:
    """What does ``--vllm-minimize`` try? Leave out every feature that the failure does not need; then add features to the smallest
    working engine while it works.

    ``attempt`` runs the test without the given features. No set is tried twice.
    """
    names = frozenset(feature.name for feature in features)
    tried = {names: failed}

    def outcome(kept_names: frozenset[str]) -> AttemptOutcome:
        if kept_names not in tried:
            tried[kept_names] = attempt(
                tuple(feature for feature in features if feature.name not in kept_names)
            )
        return tried[kept_names]

    smallest = names
    for feature in features:
        if outcome(smallest - {feature.name}).fails:
            smallest -= {feature.name}
    working = [kept_names for kept_names, result in tried.items() if result.works]
    if not working and smallest and outcome(frozenset()).works:
        working = [frozenset()]
    largest = max(working, key=len, default=None)
    for feature in reversed(features):
        if (
            largest is not None
            and feature.name not in largest
            and outcome(largest | {feature.name}).works
        ):
            largest |= {feature.name}
    return Reduction(tried, smallest, largest)


def describe(spec: EngineSpec, features: tuple[EngineFeature, ...], reduction: Reduction) -> str:
    """Return the report: both engines, every set of features that was tried, and the output at both
    ends."""
    lines = [f"smallest engine that still fails: {_spec(spec, features, reduction.smallest)}"]
    lines.append(
        f"largest engine that works: {_spec(spec, features, reduction.largest)}"
        if reduction.largest is not None
        else "no engine that works was found"
    )
    lines += [
        "",
        "tried:",
        *(
            f"  {_spec(spec, features, kept_names)}: {outcome.status}"
            for kept_names, outcome in reduction.tried.items()
        ),
    ]
    ends = [("smallest that fails", reduction.smallest)] + (
        [("largest that works", reduction.largest)] if reduction.largest is not None else []
    )
    for title, kept_names in ends:
        lines += [
            "",
            f"---- {title}: {_spec(spec, features, kept_names)} ----",
            reduction.tried[kept_names].text,
        ]
    return "\n".join(lines)


def without(features: tuple[EngineFeature, ...]) -> dict[str, Any]:
    """Return the EngineSpec fields that leave these features out."""
    return {name: value for feature in features for name, value in feature.changes.items()}


def _spec(spec: EngineSpec, features: tuple[EngineFeature, ...], kept_names: frozenset[str]) -> str:
    left_out = tuple(feature for feature in features if feature.name not in kept_names)
    small = spec.replace(**without(left_out))
    default = EngineSpec()
    arguments = [
        f"{field.name}={value}"
        for field in dataclasses.fields(small)
        if (value := getattr(small, field.name)) != getattr(default, field.name)
    ]
    if any(feature.plain for feature in left_out):
        arguments.append("requests without a schema")
    return ", ".join(arguments) or "one process, all defaults"


def minimize(
    item: pytest.Item,
    subject: Leg,
    failure: Observation,
    run_leg: Callable[[Leg], Leg],
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

    def attempt(left_out: tuple[EngineFeature, ...]) -> AttemptOutcome:
        renew_timeout(item)
        schemas = SchemaFilter(drop=any(feature.plain for feature in left_out))
        leg = run_leg(Leg(changes=without(left_out), schemas=schemas, smaller_engine=True))
        outcome = _outcome(failure, subject, leg)
        progress(
            f"{item.name} without {', '.join(feature.name for feature in left_out)}: {outcome.status}"
        )
        return outcome

    reduction = walk(present, AttemptOutcome("fails", _text(subject)), attempt)
    return mask(describe(subject.spec, present, reduction))


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
    how = (
        "unsupported"
        if observation.kind is Kind.NOT_APPLICABLE
        else f"fails otherwise: {observation.kind} in phase {observation.phase}"
    )
    return AttemptOutcome(f"{how}: {observation.summary.partition(chr(10))[0][:200]}", _text(leg))


def _text(leg: Leg) -> str:
    return str(leg.error or leg.skipped or "")[:MAX_TEXT]


def _signature(observation: Observation, leg: Leg) -> tuple[str, ...]:
    """Return what two failures must share to count as the same."""
    error = leg.error
    return (
        observation.kind,
        observation.phase,
        type(error).__name__,
        error.type_name if isinstance(error, RemoteError) else "",
    )
