"""What the user asked for, resolved once. Named tuples: each start of pytest makes them, and dataclasses would take ten times as long."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple, get_args

from ..util.sizes import MIB

Device = Literal["sim", "cpu", "gpu"]
DEVICES: tuple[Device, ...] = get_args(Device)
"""What can run vLLM; an environment without vLLM has the device none."""
ASKED_DEVICES = ("auto", *DEVICES)
"""What may be asked for; auto chooses by what is installed."""

PHASES = ("import", "start", "ready", "request", "stop", "probe")

MEMORY_SHARE = 0.9


class Timeouts(NamedTuple):
    """Seconds each phase may take."""

    import_s: float = 180.0
    start_s: float = 180.0
    ready_s: float = 180.0
    request_s: float = 60.0
    stop_s: float = 20.0
    probe_s: float = 60.0
    first_start_s: float = 600.0
    """On a GPU, of the first engine that an environment starts there: its kernels are compiled."""

    def of(self, phase: str) -> float:
        """Seconds allowed for ``phase``."""
        return float(getattr(self, f"{phase}_s"))


class Limits(NamedTuple):
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


class Settings(NamedTuple):
    """Options of one run. ``environments`` are names or interpreter paths; empty means the default environment."""

    environments: tuple[str, ...] = ()
    device: str = "auto"
    model: str | None = None
    timeouts: Timeouts = Timeouts()
    fail_on_known: bool = False
    report: Path | None = None
    leftovers: str = "warn"
    max_engines: int = 2
    limits: Limits = Limits()
    start_method: str = "fork"
    minimize: bool = False
    gpu_wait_s: float = 600.0
    """Seconds that an engine waits for GPUs that other runs, or other tenants, hold."""
    full_deadlines: bool = False
