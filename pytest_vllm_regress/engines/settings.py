"""What the user asked for, resolved once. Named tuples: dataclasses would take ten times as long to make."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..defaults import GPU_WAIT_S, MAX_ENGINES, MAX_LOG_MIB, MAX_PROCESSES, MEMORY_SHARE, TIMEOUTS_S
from ..util.sizes import MIB


class Timeouts(NamedTuple):
    """Seconds each phase may take."""

    import_s: float = TIMEOUTS_S["import"]
    start_s: float = TIMEOUTS_S["start"]
    ready_s: float = TIMEOUTS_S["ready"]
    request_s: float = TIMEOUTS_S["request"]
    stop_s: float = TIMEOUTS_S["stop"]
    probe_s: float = TIMEOUTS_S["probe"]
    first_start_s: float = TIMEOUTS_S["first_start"]

    def of(self, phase: str) -> float:
        """Seconds allowed for ``phase``."""
        return float(getattr(self, f"{phase}_s"))


class Limits(NamedTuple):
    """Hard caps: ``session_s`` for the whole run (None: none), the others for one engine, server or probe and all it starts.

    ``memory_bytes`` None: nine tenths of the machine's memory, or of the container's.
    """

    session_s: float | None = None
    memory_bytes: float | None = None
    processes: int = MAX_PROCESSES
    log_bytes: float = MAX_LOG_MIB * MIB

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


class Settings(NamedTuple):
    """Options of one run. ``environments`` are names or interpreter paths; empty means the default environment."""

    environments: tuple[str, ...] = ()
    device: str = "auto"
    model: str | None = None
    timeouts: Timeouts = Timeouts()
    fail_on_known: bool = False
    report: Path | None = None
    leftovers: str = "warn"
    max_engines: int = MAX_ENGINES
    limits: Limits = Limits()
    start_method: str = "fork"
    minimize: bool = False
    gpu_wait_s: float = GPU_WAIT_S
    full_deadlines: bool = False
