"""Run a command below a nanny, which ends everything that the command has started when the command
or this process ends, even by SIGKILL (``target_site/.../nanny.main``)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..target_site.vllm_regress_target.nanny import NOT_EXECUTED
from .paths import PACKAGE

__all__ = ["NOT_EXECUTED", "end", "supervised"]

_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from vllm_regress_target import nanny; nanny.main()"
)
_END_S = 8.0
"""Seconds for a nanny to kill everything."""


def supervised(command: Sequence[str | Path], *, max_data: int = 0) -> list[str]:
    """Return the command that runs ``command`` below a nanny, for ``subprocess.Popen`` in the
    thread that waits for it: the kernel takes the end of that thread for ours.

    It ends with the status of the command, or ``NOT_EXECUTED``, when nothing of it is left.
    ``max_data``: limit for the data of each of its processes in bytes.
    """
    nanny = [sys.executable, "-I", "-S", "-B", "-c", _START, str(PACKAGE / "target_site")]
    return [*nanny, str(os.getpid()), str(max_data), *map(str, command)]


def end(process: subprocess.Popen[bytes]) -> None:
    """End a command that was started below a nanny, with everything that it has started."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    process.kill()
    process.wait()
