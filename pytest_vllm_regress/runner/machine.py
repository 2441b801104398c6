"""What results say of the machine that they come from. Imports little: every worker of a cluster begins with it."""

from __future__ import annotations

import platform
import socket
from pathlib import Path

from ..gpus import nvml
from ..util.files import peek


def facts(node: str = "") -> dict[str, str]:
    """What results say of this machine."""
    machine = nvml.look()
    driver = {} if isinstance(machine, str) else {"driver": str(machine.driver)}
    return {
        "node": node or socket.gethostname(),
        "machine": platform.machine(),
        "processor": _processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **driver,
    }


def _processor() -> str:
    lines = peek(Path("/proc/cpuinfo"), 64 * 1024).splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
