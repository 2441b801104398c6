"""Proof that a server's port is listened on by the server's own processes, before anything is sent
there.

The port is free when it is chosen, but any user of the machine may bind it before vLLM does, or
after vLLM has ended. The kernel's table gives the inode of the listening socket, and a process of
the server must have a descriptor of it. The socket must be the same before and after a connection
is made, so no other socket can have accepted the connection. The key is sent only after this check.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import httpx
import psutil

from ..resources.ports import HOST
from . import listeners
from .listeners import Listener

_ATTEMPTS, _BETWEEN_S = 3, 0.02
"""A process that is ending has no descriptors any more, while its socket is still in the table for
a moment."""
_STARTED, _COMPLETE = "connection.connect_tcp.started", "connection.connect_tcp.complete"


class _Request(Protocol):
    """A request of httpx, or of the library that OpenAI's client has in its place."""

    extensions: Any


class NotOurServer(httpx.ConnectError):
    """A socket that is not the server's would take the connection. Nothing was sent."""


class OwnListener:
    """The listening socket of the server whose processes are ``processes()``, on ``port``."""

    def __init__(self, port: int, processes: Callable[[], Collection[psutil.Process]]) -> None:
        self._port = port
        self._processes = processes
        self._proven: dict[int, tuple[psutil.Process, str]] = {}

    def sockets(self) -> tuple[tuple[Listener, ...], tuple[Listener, ...]]:
        """Return the sockets that may take a connection now: the server's own, and others."""
        present = listeners.for_loopback(self._port)
        own = tuple(listener for listener in present if self._is_own(listener.inode))
        return own, tuple(listener for listener in present if listener not in own)

    def check(self) -> frozenset[int]:
        """Return the inodes of the listening sockets.

        Raises ``NotOurServer`` if one of them is not the server's.
        """
        for _ in range(_ATTEMPTS):
            own, others = self.sockets()
            if not others:
                break
            time.sleep(_BETWEEN_S)
        else:
            raise NotOurServer(self.describe(others))
        return frozenset(listener.inode for listener in own)

    def describe(self, others: Collection[Listener]) -> str:
        """Return who holds the port and what to do, for an error."""
        holders = ", ".join(map(str, others))
        return (
            f"port {self._port} of {HOST} is held by another program ({holders}): address already in use, and nothing was sent there. "
            "Each start takes a port at random: run it again. If that does not help, end that program, or run in a network namespace of your own"
        )

    def guard(self, request: _Request) -> None:
        """Make ``request`` check the connection that it opens: an event hook of clients like
        httpx's."""
        before: dict[str, frozenset[int]] = {}

        def trace(event: str, info: Mapping[str, Any]) -> None:
            if not self._proves(event, info, before):
                info["return_value"].close()
                raise NotOurServer(self._changed())

        request.extensions = {**request.extensions, "trace": trace}

    async def guard_async(self, request: _Request) -> None:
        """``guard`` for asynchronous clients."""
        before: dict[str, frozenset[int]] = {}

        async def trace(event: str, info: Mapping[str, Any]) -> None:
            if not self._proves(event, info, before):
                await info["return_value"].aclose()
                raise NotOurServer(self._changed())

        request.extensions = {**request.extensions, "trace": trace}

    def _proves(
        self, event: str, info: Mapping[str, Any], before: dict[str, frozenset[int]]
    ) -> bool:
        """Return False for a connection that may lead elsewhere. Raises ``NotOurServer`` before one
        is made to others.

        ``event`` and ``info`` as httpcore passes them to the request extension "trace". ``before``:
        the inodes before the connection.
        """
        if event == _STARTED and info.get("port") == self._port:
            before["inodes"] = self.check()
        elif event == _COMPLETE and "inodes" in before:
            own, others = self.sockets()
            return (
                bool(own)
                and not others
                and {listener.inode for listener in own} == before.pop("inodes")
            )
        return True

    def _changed(self) -> str:
        _, others = self.sockets()
        if others:
            return self.describe(others)
        return f"who listens on port {self._port} of {HOST} changed during the connection, so nothing was sent there"

    def _is_own(self, inode: int) -> bool:
        if inode in self._proven:
            process, descriptor = self._proven[inode]
            if process.is_running() and listeners.is_socket(descriptor, inode):
                return True
        for process in self._processes():
            opened = listeners.descriptor_of(process.pid, inode)
            if opened and process.is_running():
                self._proven[inode] = process, opened
                return True
        return False
