"""Run a command below a nanny, which ends everything that the command has started when the command
or this process ends, even by SIGKILL (``target_site/.../nanny.main``)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..target_site.vllm_regress_target.nanny import NOT_EXECUTED
from .paths import PACKAGE

__all__ = ["NOT_EXECUTED", "Supervised"]

_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from vllm_regress_target import nanny; nanny.main()"
)
_END_S = 8.0
"""Seconds for a nanny to kill everything."""


class Supervised(subprocess.Popen[bytes]):
    """A command below a nanny, in a session of its own. It ends with the status of the command, or
    ``NOT_EXECUTED``, when nothing of it is left.

    ``grace_s``: seconds that what the command has started may live on when it ends.
    ``max_data``: limit for the data of each of its processes in bytes. ``options``: of ``Popen``.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        grace_s: float = 0.0,
        max_data: int = 0,
        pass_fds: Sequence[int] = (),
        **options: Any,
    ) -> None:
        ours, lifeline = os.pipe()
        nanny = [sys.executable, "-I", "-S", "-B", "-c", _START, str(PACKAGE / "target_site")]
        limits = (ours, grace_s, max_data)
        words = [*nanny, *map(str, limits), *map(str, command)]
        # The kernel closes it when this process ends in any way.
        weakref.finalize(self, os.close, lifeline)
        try:
            super().__init__(words, pass_fds=(*pass_fds, ours), start_new_session=True, **options)
        finally:
            os.close(ours)

    def end(self) -> None:
        """End the command, with everything that it has started."""
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(_END_S)
        self.kill()
        self.wait()
