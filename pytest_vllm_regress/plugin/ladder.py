"""Reduce a failing engine to the smallest one that still fails and the largest one that works.

vLLM's own advice is to verify without parallelism first and then add it. Pure: a function argument
runs the test.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ..engines.spec import EngineSpec

Changes = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature that can be left out:

    ``changes`` are EngineSpec fields; ``plain`` takes the schema out of requests instead.
    """

    name: str
    changes: Changes
    plain: bool = False


FEATURES = (
    Feature("schema", {"structured_output_backend": "auto"}, plain=True),
    Feature("tokenizer pool", {"tokenizer_pool_size": None, "tokenizer_pool_extra_config": None}),
    Feature("pipeline parallel", {"pipeline_parallel_size": 1}),
    Feature("tensor parallel", {"tensor_parallel_size": 1}),
    Feature("data parallel", {"data_parallel_size": 1}),
    Feature("executor", {"executor": "auto"}),
)
"""Features in the order in which they are left out."""


@dataclasses.dataclass(frozen=True)
class TrialOutcome:
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

    tried: Mapping[frozenset[str], TrialOutcome]
    smallest: frozenset[str]
    largest: frozenset[str] | None


def features(spec: EngineSpec, *, schema: bool) -> tuple[Feature, ...]:
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
    features: tuple[Feature, ...],
    failed: TrialOutcome,
    attempt: Callable[[tuple[Feature, ...]], TrialOutcome],
) -> Reduction:
    """Leave out every feature that the failure does not need; then add features to the smallest
    working engine while it works.

    ``attempt`` runs the test without the given features. No set is tried twice.
    """
    names = frozenset(feature.name for feature in features)
    tried = {names: failed}

    def outcome(kept_names: frozenset[str]) -> TrialOutcome:
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


def describe(spec: EngineSpec, features: tuple[Feature, ...], reduction: Reduction) -> str:
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


def without(features: tuple[Feature, ...]) -> dict[str, Any]:
    """Return the EngineSpec fields that leave these features out."""
    return {name: value for feature in features for name, value in feature.changes.items()}


def _spec(spec: EngineSpec, features: tuple[Feature, ...], kept_names: frozenset[str]) -> str:
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
