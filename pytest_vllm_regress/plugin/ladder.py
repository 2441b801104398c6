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
class Rung:
    """One feature that can be left out: ``changes`` are EngineSpec fields; ``plain`` takes the schema out of requests instead."""

    name: str
    changes: Changes
    plain: bool = False


RUNGS = (
    Rung("schema", {"structured_output_backend": "auto"}, plain=True),
    Rung("tokenizer pool", {"tokenizer_pool_size": None, "tokenizer_pool_extra_config": None}),
    Rung("pipeline parallel", {"pipeline_parallel_size": 1}),
    Rung("tensor parallel", {"tensor_parallel_size": 1}),
    Rung("data parallel", {"data_parallel_size": 1}),
    Rung("executor", {"executor": "auto"}),
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


def features(spec: EngineSpec, *, schema: bool) -> tuple[Rung, ...]:
    """The rungs below this spec; ``schema``: the test's requests have one."""
    return tuple(
        rung
        for rung in RUNGS
        if (schema if rung.plain else any(getattr(spec, name) != value for name, value in rung.changes.items()))
    )


def walk(rungs: tuple[Rung, ...], failed: Outcome, attempt: Callable[[tuple[Rung, ...]], Outcome]) -> Found:
    """Down, leaving out what the failure does not need; then up from the bottom, adding what still works.

    ``attempt`` runs the test without the given rungs. No set is tried twice.
    """
    names = frozenset(rung.name for rung in rungs)
    tried = {names: failed}

    def outcome(kept: frozenset[str]) -> Outcome:
        if kept not in tried:
            tried[kept] = attempt(tuple(rung for rung in rungs if rung.name not in kept))
        return tried[kept]

    smallest = names
    for rung in rungs:
        if outcome(smallest - {rung.name}).fails:
            smallest -= {rung.name}
    working = [kept for kept, each in tried.items() if each.works]
    if not working and smallest and outcome(frozenset()).works:
        working = [frozenset()]
    largest = max(working, key=len, default=None)
    for rung in reversed(rungs):
        if largest is not None and rung.name not in largest and outcome(largest | {rung.name}).works:
            largest |= {rung.name}
    return Found(tried, smallest, largest)


def describe(spec: EngineSpec, rungs: tuple[Rung, ...], found: Found) -> str:
    """What to report: the two engines, every rung that was tried, and what was seen at both ends."""
    lines = [f"smallest engine that still fails: {_spec(spec, rungs, found.smallest)}"]
    lines.append(
        f"largest engine that works: {_spec(spec, rungs, found.largest)}"
        if found.largest is not None
        else "no engine that works was found"
    )
    lines += ["", "tried:", *(f"  {_spec(spec, rungs, kept)}: {each.seen}" for kept, each in found.tried.items())]
    ends = [("smallest that fails", found.smallest)] + (
        [("largest that works", found.largest)] if found.largest is not None else []
    )
    for title, kept in ends:
        lines += ["", f"---- {title}: {_spec(spec, rungs, kept)} ----", found.tried[kept].text]
    return "\n".join(lines)


def without(rungs: tuple[Rung, ...]) -> dict[str, Any]:
    """The EngineSpec fields to change for leaving these features out."""
    return {name: value for rung in rungs for name, value in rung.changes.items()}


def _spec(spec: EngineSpec, rungs: tuple[Rung, ...], kept: frozenset[str]) -> str:
    left_out = tuple(rung for rung in rungs if rung.name not in kept)
    small = spec.replace(**without(left_out))
    plain = EngineSpec()
    shown = [f"{name}={value}" for name, value in dataclasses.asdict(small).items() if value != getattr(plain, name)]
    if any(rung.plain for rung in left_out):
        shown.append("requests without a schema")
    return ", ".join(shown) or "one process, all defaults"
