"""Ports that cannot collide: each is leased by a file lock between all harness processes of the user, below the ephemeral range."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import RegressError
from ..util.paths import cache_root
from ..util.project import is_private

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
    folder = _folder()
    for number in _candidates():
        lock = FileLock(folder / f"{number}.lock", thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        except OSError as error:  # filelock opens no link
            raise RegressError(
                f"{folder / f'{number}.lock'}: cannot be locked: {error.strerror or error}. Remove it if it is a link"
            ) from None
        if _bindable(number):
            return PortLease(number, lock)
        lock.release()
    raise RegressError(f"no free port between {FIRST} and {LAST} on {HOST}: another program holds them all")


def _folder() -> Path:
    """Where the locks are: a place for all processes of the user. In the temporary directory somebody else may have been first: then in the cache."""
    folder = Path(tempfile.gettempdir()) / f"vllm-regress-ports-{os.getuid()}"
    if is_private(folder):
        return folder
    ours = cache_root() / "ports"
    if not is_private(ours):
        raise RegressError(f"neither {folder} nor {ours} is a directory of this user that nobody else may write to")
    return ours


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
