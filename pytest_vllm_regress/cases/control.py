"""Controls of a case: the control leg, and the reason if no positive control is possible."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ..engines.spec import SHORT, EngineSpec
from ..errors import UsageError

_NOTHING: Mapping[str, Any] = MappingProxyType({})
RESERVED_KEYS = ("omits", "none", "probe")
"""Keys of ``[control]`` that are not fields of EngineSpec."""


@dataclasses.dataclass(frozen=True)
class Control:
    """The table ``[control]`` of a case.

    ``omits``: the single thing that the control leg leaves out; empty if the case declares no
    control leg. ``none``: why no positive
    control is possible. ``changes``: EngineSpec fields of the control leg (mappings are merged into
    the subject's); ``probe``: its probe arguments.
    """

    omits: str = ""
    none: str = ""
    changes: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _NOTHING, hash=False)
    probe: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _NOTHING, hash=False)

    @property
    def declared(self) -> bool:
        """Whether every failure of the case is followed by a control leg."""
        return bool(self.omits)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Control:
        """Create it from a ``[control]`` table without ``control_problems``."""
        changes = {
            SHORT.get(name, name): value
            for name, value in table.items()
            if name not in RESERVED_KEYS
        }
        return cls(
            omits=table.get("omits", ""),
            none=table.get("none", ""),
            changes=MappingProxyType(changes),
            probe=MappingProxyType(dict(table.get("probe", {}))),
        )

    def claims(self) -> tuple[Any, ...]:
        """Return what a proof depends on; wording may change freely."""
        return (
            self.declared,
            bool(self.none),
            repr(sorted(self.changes.items())),
            repr(sorted(self.probe.items())),
        )


def control_problems(table: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a ``[control]`` beyond its schema."""
    if "reason" in table:
        return [
            "control.reason: called omits since format 1: the single thing that the control leg leaves out. `vllm-regress migrate` renames it"
        ]
    settings = {
        SHORT.get(name, name): value for name, value in table.items() if name not in RESERVED_KEYS
    }
    messages = []
    if not table.get("omits") and (settings or table.get("probe")):
        messages.append(
            'control: omits is missing: name the single thing that this leg leaves out, for example omits = "the second stage"'
        )
    if not table.get("omits") and not table.get("none"):
        messages.append(
            "control: empty; allowed are omits with what the leg changes, or none with the reason why no control is possible"
        )
    try:
        EngineSpec.create(**settings)
    except UsageError as error:
        messages.append(
            f"control: {str(error).removeprefix('engine spec: ').removeprefix('vllm_engine: ')}"
        )
    return messages
