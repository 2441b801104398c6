"""The controls of a case: the leg that leaves one single thing out, and why there is no positive one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ..engines.spec import SHORT, EngineSpec
from ..errors import UsageError

_NOTHING: Mapping[str, Any] = MappingProxyType({})
WORDS = ("omits", "none", "probe")
"""What a table ``[control]`` may hold beside fields of EngineSpec."""


@dataclasses.dataclass(frozen=True)
class Control:
    """``omits``: the single thing that the control leg leaves out, empty where none is declared. ``none``: why no positive control can be.

    ``changes`` are EngineSpec fields (mappings are laid over the subject's own), ``probe`` arguments of the probe, as the control leg sets them.
    """

    omits: str = ""
    none: str = ""
    changes: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _NOTHING, hash=False)
    probe: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _NOTHING, hash=False)

    @property
    def declared(self) -> bool:
        """A control leg belongs to every failure of the case."""
        return bool(self.omits)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Control:
        """From a ``[control]`` that ``faults`` found nothing wrong with."""
        changes = {SHORT.get(name, name): value for name, value in table.items() if name not in WORDS}
        return cls(
            omits=table.get("omits", ""),
            none=table.get("none", ""),
            changes=MappingProxyType(changes),
            probe=MappingProxyType(dict(table.get("probe", {}))),
        )

    def claims(self) -> tuple[Any, ...]:
        """What a proof depends on; the words may change freely."""
        return (self.declared, bool(self.none), repr(sorted(self.changes.items())), repr(sorted(self.probe.items())))


def faults(table: Mapping[str, Any]) -> list[str]:
    """What is wrong with a ``[control]`` beyond its schema."""
    if "reason" in table:
        return ["control.reason: is called omits: the single thing that the control leg leaves out"]
    given = {SHORT.get(name, name): value for name, value in table.items() if name not in WORDS}
    found = []
    if not table.get("omits") and (given or table.get("probe")):
        found.append(
            'control: no omits; say which single thing this leg leaves out, for example omits = "the second stage"'
        )
    if not table.get("omits") and not table.get("none"):
        found.append(
            "control: empty; allowed are omits with what the leg changes, or none with the reason why no control can be"
        )
    try:
        EngineSpec.create(**given)
    except UsageError as error:
        found.append(f"control: {str(error).removeprefix('engine spec: ').removeprefix('vllm_engine: ')}")
    return found
