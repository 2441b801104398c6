"""The ladder: from an engine that fails to the smallest that still fails and the largest that works.

Upstream's own advice is to verify without parallelism first and to add it then. Pure: what a spec gives is asked of a function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ..engines.spec import EngineSpec

Changes = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature that can be left out: ``changes`` are EngineSpec fields; ``plain`` takes the schema out of requests instead."""

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
"""In the order in which they are left out."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a test gave without some features: the failure to explain (``fails``), a pass, or neither (``other``: another failure, or unsupported)."""

    seen: str
    text: str

    @property
    def fails(self) -> bool:
        return self.seen == "fails"

    @property
    def works(self) -> bool:
        return self.seen == "works"


@dataclasses.dataclass(frozen=True)
class Found:
    """Each set of features that was tried, in order, with its outcome; ``smallest`` still fails, ``largest`` works (None: none does)."""

    tried: Mapping[frozenset[str], Outcome]
    smallest: frozenset[str]
    largest: frozenset[str] | None


def features(spec: EngineSpec, *, schema: bool) -> tuple[Feature, ...]:
    """What of this spec can be left out; ``schema``: the test's requests have one."""
    return tuple(
        feature
        for feature in FEATURES
        if (schema if feature.plain else any(getattr(spec, name) != value for name, value in feature.changes.items()))
    )


def walk(features: tuple[Feature, ...], failed: Outcome, attempt: Callable[[tuple[Feature, ...]], Outcome]) -> Found:
    """Down, leaving out what the failure does not need; then up from the bottom, adding what still works.

    ``attempt`` runs the test without the given features. No set is tried twice.
    """
    names = frozenset(feature.name for feature in features)
    tried = {names: failed}

    def outcome(kept: frozenset[str]) -> Outcome:
        if kept not in tried:
            tried[kept] = attempt(tuple(feature for feature in features if feature.name not in kept))
        return tried[kept]

    smallest = names
    for feature in features:
        if outcome(smallest - {feature.name}).fails:
            smallest -= {feature.name}
    working = [kept for kept, each in tried.items() if each.works]
    if not working and smallest and outcome(frozenset()).works:
        working = [frozenset()]
    largest = max(working, key=len, default=None)
    for feature in reversed(features):
        if largest is not None and feature.name not in largest and outcome(largest | {feature.name}).works:
            largest |= {feature.name}
    return Found(tried, smallest, largest)


def describe(spec: EngineSpec, features: tuple[Feature, ...], found: Found) -> str:
    """What to report: the two engines, every feature that was tried, and what was seen at both ends."""
    lines = [f"smallest engine that still fails: {_spec(spec, features, found.smallest)}"]
    lines.append(
        f"largest engine that works: {_spec(spec, features, found.largest)}"
        if found.largest is not None
        else "no engine that works was found"
    )
    lines += ["", "tried:", *(f"  {_spec(spec, features, kept)}: {each.seen}" for kept, each in found.tried.items())]
    ends = [("smallest that fails", found.smallest)] + (
        [("largest that works", found.largest)] if found.largest is not None else []
    )
    for title, kept in ends:
        lines += ["", f"---- {title}: {_spec(spec, features, kept)} ----", found.tried[kept].text]
    return "\n".join(lines)


def without(features: tuple[Feature, ...]) -> dict[str, Any]:
    """The EngineSpec fields to change for leaving these features out."""
    return {name: value for feature in features for name, value in feature.changes.items()}


def _spec(spec: EngineSpec, features: tuple[Feature, ...], kept: frozenset[str]) -> str:
    left_out = tuple(feature for feature in features if feature.name not in kept)
    small = spec.replace(**without(left_out))
    plain = EngineSpec()
    shown = [f"{name}={value}" for name, value in dataclasses.asdict(small).items() if value != getattr(plain, name)]
    if any(feature.plain for feature in left_out):
        shown.append("requests without a schema")
    return ", ".join(shown) or "one process, all defaults"
