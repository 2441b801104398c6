"""What may be asked for, and what is so where nobody asks. Beside ``errors``, and without a class: every start of pytest imports it."""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal, get_args

Device = Literal["sim", "cpu", "gpu"]
DEVICES: tuple[Device, ...] = get_args(Device)
"""What can run vLLM; an environment without vLLM has the device none."""
ASKED_DEVICES = ("auto", *DEVICES)
"""What may be asked for; auto chooses by what is installed."""

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
"""Seconds that each phase may take; ``first_start``: on a GPU, start and ready of the first engine that an environment starts there, since its
kernels are compiled."""
GPU_WAIT_S = 600.0
"""Seconds that an engine waits for GPUs that other runs, or other tenants, hold."""

MAX_ENGINES = 2
MAX_PROCESSES = 4096
MAX_LOG_MIB = 64
MEMORY_SHARE = 0.9
"""Of the machine's memory, or of the container's, for one engine and all it starts."""
