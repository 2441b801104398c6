"""``python -m pytest_vllm_regress.runner.slots COMMAND``: runs it when the machine has room for one more environment.

For what is started many at a time by somebody who does not know this machine, as ``tox run-parallel`` does. GPUs are shared by leases of
their own.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from ..util.files import private_folder
from ..util.paths import writable_root
from ..util.sizes import GIB

POLL_S = 0.5
GIB_PER_JOB = 6
IDLE_S = 10.0
"""For so long there must have been idle what an environment needs, before one more is used than there are cores."""
NEED = 0.6
"""Of a core, about what an environment keeps busy: all cases took 722 s of processor time in 1,093 s of their runs."""


def room(cores: int, memory_gib: float) -> int:
    """Environments at a time: one for each core, as a run waits for half of its time or more, and some memory for each."""
    return max(1, min(cores, int(memory_gib // GIB_PER_JOB)))


def machine_room() -> int:
    """``room`` on this machine."""
    return room(os.cpu_count() or 1, psutil.virtual_memory().total / GIB)


def _idle_s() -> float:
    return float(psutil.cpu_times().idle)


def _free_gib() -> float:
    return float(psutil.virtual_memory().available / GIB)


class Spare:
    """Whether one more environment may be used beside ``running`` ones, asked again and again: tests that only wait cost no core.

    It may when ``NEED`` of a core had nothing to do for ``IDLE_S`` and there is memory for it, never more than ``most``. ``idle_s``: seconds that
    all cores together had nothing to do; ``free_gib``: memory.
    """

    def __init__(
        self,
        most: int,
        idle_s: Callable[[], float] = _idle_s,
        free_gib: Callable[[], float] = _free_gib,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._idle_s, self._free_gib, self._clock = most, idle_s, free_gib, clock
        self._asked = -math.inf
        self._since, self._idle = 0.0, 0.0

    @classmethod
    def of_machine(cls) -> Spare:
        """For this machine: up to two environments for each core, as long as memory for one more is free."""
        return cls(2 * (os.cpu_count() or 1))

    def __call__(self, running: int) -> bool:
        now, asked = self._clock(), self._asked
        self._asked = now
        if now - asked < IDLE_S and now - self._since < IDLE_S:
            return False
        before, since = self._idle, self._since
        self._idle, self._since = self._idle_s(), now
        if now - asked >= IDLE_S:  # nobody asked: what was before does not count
            return False
        spare = (self._idle - before) / (now - since)
        return running < self._most and spare >= NEED and self._free_gib() >= GIB_PER_JOB


@contextlib.contextmanager
def slot(folder: Path, count: int) -> Iterator[int]:
    """Holds one of ``count`` slots, whoever else asks on this machine; waits until one is free. A holder that dies gives its slot back."""
    private_folder(folder)
    locks = [FileLock(folder / f"{number}.lock", thread_local=False) for number in range(count)]
    while True:
        for number, lock in enumerate(locks):
            with contextlib.suppress(Timeout):
                lock.acquire(timeout=0)
                try:
                    yield number
                finally:
                    lock.release()
                return
        time.sleep(POLL_S)  # several locks at once cannot be waited for otherwise


def main(command: Sequence[str]) -> int:
    """Run ``command`` in a slot; returns its exit status."""
    with slot(writable_root() / "slots", machine_room()):
        return subprocess.run(list(command)).returncode


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("usage: python -m pytest_vllm_regress.runner.slots COMMAND [ARGUMENT...]")
    sys.exit(main(sys.argv[1:]))
