"""What the user asked for, resolved once, as a frozen value."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from .deadline import Timeouts


@dataclasses.dataclass(frozen=True)
class Settings:
    """Options of one run. ``environments`` are names or interpreter paths; empty means the default environment."""

    environments: tuple[str, ...] = ()
    device: str = "auto"
    model: str | None = None
    timeouts: Timeouts = dataclasses.field(default_factory=Timeouts)
    fail_on_known: bool = False
    report: Path | None = None
    leftovers: str = "warn"
    max_engines: int = 2
    start_method: str = "fork"
