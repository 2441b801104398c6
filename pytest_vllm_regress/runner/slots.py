"""``python -m pytest_vllm_regress.runner.slots COMMAND``: runs it when the machine has room for one more environment.

For what is started many at a time by somebody who does not know this machine, as ``tox run-parallel`` does. GPUs are shared by leases of
their own.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from ..util.files import private_folder
from ..util.paths import writable_root
from ..util.sizes import GIB

POLL_S = 0.5
GIB_PER_JOB = 6


def room(cores: int, memory_gib: float) -> int:
    """Environments at a time: one for each core, as a run waits for half of its time or more, and some memory for each."""
    return max(1, min(cores, int(memory_gib // GIB_PER_JOB)))


def machine_room() -> int:
    """``room`` on this machine."""
    return room(os.cpu_count() or 1, psutil.virtual_memory().total / GIB)


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
