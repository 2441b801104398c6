"""Ports for servers: how a port is chosen. A file lock reserves each port among all harness processes
of a user, so that all runs of a user stay apart.

The range lies below the kernel's ephemeral ports.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import RegressError
from ..util.paths import cache_root, is_private

_log = logging.getLogger("vllm_regress.engines")
HOST = "127.0.0.1"
# Below 32768, where Linux begins to give ports to outgoing connections (ip_local_port_range): one of
# those could take a reserved port before vLLM binds it. Above 19999, because services that users run
# beside tests (vLLM's own default 8000, Ray's 6379, 8265 and 10001 to 19999) have lower numbers.
# Ten thousand ports are enough for a random choice that nobody can guess.
FIRST, LAST = 20000, 29999


class PortLease:
    """A reserved port, until ``release``. Nothing listened on ``number`` when it was reserved."""

    def __init__(self, number: int, lock: FileLock) -> None:
        self.number = number
        self._lock = lock

    def release(self) -> None:
        """Give the port back."""
        self._lock.release()


def lease_port() -> PortLease:
    """Reserve a port. Raises ``RegressError`` if every port of the range is taken."""
    folder = _folder()
    for number in _candidates():
        lock = FileLock(folder / f"{number}.lock", thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        except OSError as error:  # filelock does not follow symbolic links
            raise RegressError(
                f"{folder / f'{number}.lock'}: cannot be locked: {error.strerror or error}. Remove it if it is a link"
            ) from None
        if _bindable(number):
            _log.debug("reserved port %d by %s", number, lock.lock_file)
            return PortLease(number, lock)
        lock.release()
    raise RegressError(
        f"no free port between {FIRST} and {LAST} on {HOST}: another program holds them all"
    )


def _folder() -> Path:
    """Return the folder of the locks, the same for all processes of the user. It is in the cache if
    somebody else has taken the name in the temporary
    directory."""
    folder = Path(tempfile.gettempdir()) / f"vllm-regress-ports-{os.getuid()}"
    if is_private(folder):
        return folder
    fallback = cache_root() / "ports"
    if not is_private(fallback):
        raise RegressError(
            f"neither {folder} nor {fallback} is a directory that belongs to this user and that nobody else may write to"
        )
    return fallback


def _candidates() -> Sequence[int]:
    """Return all ports of the range in an order that nobody can guess, so that nobody can bind the
    next one in advance."""
    return random.SystemRandom().sample(range(FIRST, LAST + 1), LAST - FIRST + 1)


def _bindable(number: int) -> bool:
    with socket.socket() as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((HOST, number))
        except OSError:
            return False
        return True
