"""What the user asked for, resolved once, as a frozen value."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal, get_args

from ..util.deadline import Timeouts
from ..util.sizes import MIB

Device = Literal["sim", "cpu", "gpu"]
DEVICES: tuple[Device, ...] = get_args(Device)
"""What can run vLLM; an environment without vLLM has the device none."""
ASKED_DEVICES = ("auto", *DEVICES)
"""What may be asked for; auto chooses by what is installed."""

MEMORY_SHARE = 0.9


@dataclasses.dataclass(frozen=True)
class Limits:
    """Hard caps: ``session_s`` for the whole run (None: none), the others for one engine, server or probe and all it starts.

    ``memory_bytes`` None: nine tenths of the machine's memory, or of the container's.
    """

    session_s: float | None = None
    memory_bytes: float | None = None
    processes: int = 4096
    log_bytes: float = 64 * MIB

    def as_request(self, until: float | None) -> dict[str, float]:
        """As the nanny reads them; ``until``: when the session's budget is used up, in seconds of the monotonic clock."""
        from ..processes.shortages import all_memory

        known = {
            "memory": self.memory_bytes or MEMORY_SHARE * all_memory(),
            "processes": self.processes,
            "log": self.log_bytes,
            "until": until,
            "session": self.session_s,
        }
        return {name: value for name, value in known.items() if value is not None}


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
    limits: Limits = dataclasses.field(default_factory=Limits)
    start_method: str = "fork"
    minimize: bool = False
    gpu_wait_s: float = 600.0
    """Seconds that an engine waits for GPUs that other runs, or other tenants, hold."""
    full_deadlines: bool = False
