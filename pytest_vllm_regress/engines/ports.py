"""Ports that cannot collide: each is leased by a file lock between all harness processes of the user, below the ephemeral range."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import RegressError

HOST = "127.0.0.1"
FIRST, LAST = 20000, 29999  # kernels hand out ephemeral ports from 32768 on, so no other program lands here by chance


class PortLease:
    """A port of our own until ``release``. ``number`` is free for a server to bind."""

    def __init__(self, number: int, lock: FileLock) -> None:
        self.number = number
        self._lock = lock

    def release(self) -> None:
        self._lock.release()


def lease_port() -> PortLease:
    """Lease a port. Raises ``RegressError`` when every port of the range is taken."""
    folder = Path(tempfile.gettempdir()) / f"vllm-regress-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for number in _candidates():
        lock = FileLock(folder / f"{number}.lock", thread_local=False)
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=0)
            if _bindable(number):
                return PortLease(number, lock)
            lock.release()
    raise RegressError(f"no free port between {FIRST} and {LAST} on {HOST}: another program holds them all")


def _candidates() -> Iterator[int]:
    size = LAST - FIRST + 1
    start = os.getpid() * 7919 % size
    return (FIRST + (start + step) % size for step in range(size))


def _bindable(number: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, number))
        except OSError:
            return False
        return True
