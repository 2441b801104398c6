"""Another program, of this user or of another, that listens on a port and records what it is sent."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

NOBODY = 65534
MODELS = json.dumps({"data": [{"id": "theirs"}], "choices": [{"text": "theirs"}]})
needs_root = pytest.mark.skipif(
    os.getuid() != 0, reason="another user cannot be played without root: run as root"
)


def tell(descriptor: int) -> None:
    os.write(descriptor, b"1")


@contextlib.contextmanager
def forked(work: Callable[[Callable[[], None]], None], uid: int | None = None) -> Iterator[int]:
    """Run ``work`` in a child of this process, as the user ``uid``, until the end of the block.

    It calls its argument when it is ready.
    """
    ready, made_ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            work(lambda: tell(made_ready))
        finally:
            os._exit(1)
    os.close(made_ready)
    try:
        assert os.read(ready, 1), "it did not start"
        yield pid
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextlib.contextmanager
def squatter(
    port: int,
    received: Path,
    *,
    host: str = "127.0.0.1",
    uid: int | None = NOBODY,
    shared: bool = False,
    name: bytes = b"server",
) -> Iterator[int]:
    """Answer every request on ``port`` like a server, and append what was received to the file
    ``received``. Yields the pid."""
    with received.open("ab", 0) as record:

        def work(ready: Callable[[], None]) -> None:
            ctypes.CDLL(None).prctl(15, name, 0, 0, 0)  # PR_SET_NAME
            listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listening.bind((host, port))
            listening.listen()
            ready()
            while True:
                connection, _ = listening.accept()
                record.write(connection.recv(65536))
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(MODELS)}\r\n\r\n"
                with contextlib.suppress(OSError):
                    connection.sendall((head + MODELS).encode())
                connection.close()

        with forked(work, uid) as pid:
            yield pid


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
