"""Facts of the machine that results come from.

Imports little, because every worker of a cluster imports it.
"""

from __future__ import annotations

import platform
import socket
from pathlib import Path

from ...engines.gpus import nvml
from ...util.files import peek


def facts(node: str = "") -> dict[str, str]:
    """Return facts of this machine. ``node``: its name (default: the host name)."""
    gpus = nvml.query_machine()
    driver = {} if isinstance(gpus, str) else {"driver": str(gpus.driver)}
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
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )
