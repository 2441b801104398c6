"""Allowed values and defaults of options.

Every start of pytest imports this module, so it defines no classes and imports little.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal, get_args

Device = Literal["sim", "cpu", "gpu"]
DEVICES: tuple[Device, ...] = get_args(Device)
"""Devices that can run vLLM. An environment without vLLM has the device ``none``."""
ASKED_DEVICES = ("auto", *DEVICES)
"""Allowed values of ``--device``; ``auto`` depends on the installed vLLM."""

PHASES = ("import", "start", "ready", "request", "stop", "probe")
TIMEOUTS_S = MappingProxyType(
    {
        "import": 180.0,
        "start": 180.0,
        "ready": 180.0,
        "request": 60.0,
        "stop": 20.0,
        "probe": 60.0,
        "first_start": 600.0,
    }
)
"""Seconds that each phase may take. ``first_start`` replaces start and ready for the first engine
of an environment on a GPU, which compiles
its kernels."""
GPU_WAIT_S = 600.0
"""Seconds that an engine waits for GPUs held by other runs or tenants."""

MAX_ENGINES = 2
MAX_PROCESSES = 4096
MAX_LOG_MIB = 64
MEMORY_SHARE = 0.9
"""Fraction of the machine's (or container's) memory that one engine and its descendants may use."""
RACY_TRIALS = 5
"""Default number of trials of a racy case."""
