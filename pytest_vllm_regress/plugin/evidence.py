"""What was seen while one leg of a test ran: replies of the target, the phase reached, the exception, the time spent."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from ..cases.observation import Mechanism
    from ..engines.schema_filter import SchemaFilter
    from ..engines.spec import EngineSpec
    from ..errors import Parts
    from .strike import Strike

SUBJECT, CONTROL = "subject", "control"


def _all_schemas() -> SchemaFilter:
    from ..engines.schema_filter import SchemaFilter

    return SchemaFilter()


@dataclasses.dataclass
class Evidence:
    """Collected by the fixtures and hooks during one leg. ``replies`` counts answers that came from the target.

    ``changes`` are EngineSpec fields that this leg sets otherwise and ``probe`` arguments of its probe, ``spec`` the engine that it had.
    ``engine`` holds what the engine's processes wrote and which are gone, as it was when a failed test gave the engine back; ``dead`` tells
    that the engine was dead then. ``strike`` is an impostor in the place of the target. A leg without some ``feature`` keeps its engine's
    ``dossier`` when it worked, and gives up its engine. ``gpu``: what a record says of the GPU, where there is one.
    """

    leg: str = SUBJECT
    replies: int = 0
    phase: str = "probe"
    error: BaseException | None = None
    skipped: str | None = None
    at_work: list[Mechanism] = dataclasses.field(default_factory=list)
    engine: Parts = dataclasses.field(default_factory=dict)
    dead: bool = False
    reports: list[pytest.TestReport] = dataclasses.field(default_factory=list)
    started_at: float = dataclasses.field(default_factory=time.time)
    started: float = dataclasses.field(default_factory=time.monotonic)
    control_used: bool = False
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    probe: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    schemas: SchemaFilter = dataclasses.field(default_factory=_all_schemas)
    spec: EngineSpec | None = None
    feature: bool = False
    strike: Strike | None = None
    dossier: str = ""
    minimized: str = ""
    gpu: Mapping[str, str] = dataclasses.field(default_factory=dict)
    protocol_started: float = dataclasses.field(default_factory=time.monotonic)

    def changed_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """A probe's arguments as this leg sets them."""
        changed = {name: value for name, value in self.probe.items() if name in arguments}
        self.control_used |= any(arguments[name] != value for name, value in changed.items())
        return {**arguments, **changed}

    def replied(self, phase: str) -> None:
        """The target answered in ``phase``."""
        self.replies += 1
        self.phase = phase


def harmless(text: str) -> str:
    """Masked, and with what a target process or a case file said unable to steer the terminal; tabs stay."""
    from ..util.masking import mask
    from ..util.text import printable

    return "\t".join(map(printable, mask(text).split("\t")))
