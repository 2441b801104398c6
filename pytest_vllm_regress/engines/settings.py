"""The options of a run, resolved once.

They are named tuples because dataclasses take ten times as long to create.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ..defaults import GPU_WAIT_S, MAX_ENGINES, MAX_LOG_MIB, MAX_PROCESSES, MEMORY_SHARE, TIMEOUTS_S
from ..util.sizes import MIB


class Timeouts(NamedTuple):
    """Seconds that each phase may take."""

    import_s: float = TIMEOUTS_S["import"]
    start_s: float = TIMEOUTS_S["start"]
    ready_s: float = TIMEOUTS_S["ready"]
    request_s: float = TIMEOUTS_S["request"]
    stop_s: float = TIMEOUTS_S["stop"]
    probe_s: float = TIMEOUTS_S["probe"]
    first_start_s: float = TIMEOUTS_S["first_start"]

    def of(self, phase: str) -> float:
        """Return the seconds that ``phase`` may take."""
        return float(getattr(self, f"{phase}_s"))


class Limits(NamedTuple):
    """Hard limits: ``session_s`` for the whole run (None: no limit), the others for one engine,
    server or probe and everything it starts.

    A ``memory_bytes`` of None means nine tenths of the memory of the machine or container.
    ``option_names``: the option that sets each limit, for messages; None means pytest's.
    """

    session_s: float | None = None
    memory_bytes: float | None = None
    processes: int = MAX_PROCESSES
    log_bytes: float = MAX_LOG_MIB * MIB
    option_names: Mapping[str, str] | None = None

    def as_request(self, until: float | None) -> dict[str, float]:
        """Return the limits in the form that the nanny reads.

        ``until``: end of the session's budget, in seconds of the monotonic clock.
        """
        from .processes.shortages import all_memory

        limits = {
            "memory": self.memory_bytes or MEMORY_SHARE * all_memory(),
            "processes": self.processes,
            "log": self.log_bytes,
            "until": until,
            "session": self.session_s,
        }
        return {name: value for name, value in limits.items() if value is not None}

    def options(self) -> Mapping[str, str]:
        """Return the option that sets each limit, in the form that the nanny reads."""
        from ..target_site.vllm_regress_target.limits import PYTEST_OPTIONS

        return PYTEST_OPTIONS if self.option_names is None else self.option_names


KEPT_REQUESTS = "requests"
"""The value of ``leftovers`` with which requests that an engine keeps fail a test, too."""


class Settings(NamedTuple):
    """Options of one run. ``environments`` are names or interpreter paths; empty means the default
    environment.

    ``hub_cache``: the Hugging Face cache in which targets look up names of models (default: the
    user's own). ``variables``: environment variables
    of all targets. ``inherited``: the variables that these replace (default: those of this process
    when a target starts).
    """

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
    gpu_runs: int = 1
    full_deadlines: bool = False
    hub_cache: Path | None = None
    variables: Mapping[str, str] = MappingProxyType({})
    inherited: Mapping[str, str] | None = None
