"""How many batches run side by side? As many environments as this machine has room for. ``python -m
pytest_vllm_regress.runner.slots COMMAND`` waits for room, then runs the command.

It is for callers such as ``tox run-parallel`` that start many commands without knowing the machine.
GPUs are shared by leases instead (``gpus/``).

pytest itself takes no slot, because a user who starts one run expects it to start at once. ``run``,
``matrix``, ``validate`` and ``try`` know all their batches and count for themselves.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
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
GIB_PER_BATCH = 6
IDLE_S = 10.0
"""Seconds for which ``NEED`` must have been idle before more environments are used than there are
cores."""
GIB_PER_WORKER = 3
"""A warm agent, and a server or a small Ray cluster."""
WORKERS_PER_CORE = 3
LOOKS, BETWEEN_LOOKS_S = 10, 0.05
NEED = 0.6
"""Cores that an environment keeps busy on average: all cases took 722 s of processor time in 1,093
s."""


def room(cores: int, memory_gib: float) -> int:
    """Return how many environments fit: one for each core, because a run waits for half of its time
    or more, and ``GIB_PER_BATCH`` for each."""
    return max(1, min(cores, int(memory_gib // GIB_PER_BATCH)))


def machine_room() -> int:
    """Return how many environments fit on this machine."""
    return room(os.cpu_count() or 1, psutil.virtual_memory().total / GIB)


def worker_room(
    cores: int | None = None, memory_gib: float | None = None, load: float | None = None
) -> int:
    """Return how many tests may wait for documented hangs side by side: ``WORKERS_PER_CORE``, less
    what the machine does already (``load``), so that none of them misses its deadline because of
    the others. By default of this machine, now."""
    cores = cores or os.cpu_count() or 1
    memory_gib = memory_gib or psutil.virtual_memory().available / GIB
    load = present_load() if load is None else load
    return max(1, int(min(WORKERS_PER_CORE * cores - load, memory_gib / GIB_PER_WORKER)))


def _running() -> int:
    """Return how many other tasks of this machine run or want to (proc_loadavg(5))."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1


def present_load(running: Callable[[], int] = _running, average: float | None = None) -> float:
    """Return how many tasks want a core: the load average, or what runs now if that is less. The
    average counts for minutes what has ended, such as an installation."""
    average = os.getloadavg()[0] if average is None else average
    looks = []
    for _ in range(LOOKS if average >= 1 else 0):
        looks.append(running())
        time.sleep(BETWEEN_LOOKS_S)
    return min(average, statistics.mean(looks)) if looks else average


def _idle_s() -> float:
    return float(psutil.cpu_times().idle)


def _free_gib() -> float:
    return float(psutil.virtual_memory().available / GIB)


class Spare:
    """Says whether one more environment may run beside ``running`` ones, because tests that only
    wait need no core.

    It may if ``NEED`` cores were idle for the last ``IDLE_S`` seconds and ``GIB_PER_BATCH`` is
    free, up to ``most`` environments. It must be called at least every ``IDLE_S`` seconds.
    ``idle_s`` returns the idle seconds of all cores together.
    """

    def __init__(
        self,
        most: int,
        idle_s: Callable[[], float] = _idle_s,
        free_gib: Callable[[], float] = _free_gib,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._idle_s, self._free_gib, self._clock = most, idle_s, free_gib, clock
        self._called_at = -math.inf
        self._since, self._idle = 0.0, 0.0

    @classmethod
    def of_machine(cls) -> Spare:
        """Return one for this machine: up to two environments for each core."""
        return cls(2 * (os.cpu_count() or 1))

    def __call__(self, running: int) -> bool:
        now, called_at = self._clock(), self._called_at
        self._called_at = now
        if now - called_at < IDLE_S and now - self._since < IDLE_S:
            return False
        idle_before, since = self._idle, self._since
        self._idle, self._since = self._idle_s(), now
        if (
            now - called_at >= IDLE_S
        ):  # the interval is too long to say anything about the last IDLE_S
            return False
        idle_cores = (self._idle - idle_before) / (now - since)
        return running < self._most and idle_cores >= NEED and self._free_gib() >= GIB_PER_BATCH


@contextlib.contextmanager
def slot(folder: Path, count: int) -> Iterator[int]:
    """Wait for one of ``count`` slots that all processes of this machine share, and hold it.

    The slot of a process that dies is free again.
    """
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
        time.sleep(POLL_S)  # the lock library cannot wait for several locks at once


def main(command: Sequence[str]) -> int:
    """Run ``command`` in a slot; return its exit status."""
    with slot(writable_root() / "slots", machine_room()):
        return subprocess.run(list(command)).returncode


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("usage: python -m pytest_vllm_regress.runner.slots COMMAND [ARGUMENT...]")
    sys.exit(main(sys.argv[1:]))
