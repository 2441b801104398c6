"""Who listens on a TCP port of this machine, from the kernel (sock_diag(7); proc_net_tcp.rst in its
documentation); and the proof that a server's port is listened on by
the server's own processes, before anything is sent there (``OwnListener``).

The port is free when it is chosen, but any user of the machine may bind it before vLLM does, or
after vLLM has ended. The kernel gives the inode of the listening socket, and a process of
the server must have a descriptor of it. The socket must be the same before and after a connection
is made, so no other socket can have accepted the connection. The key is sent only after this check,
which is made for each connection (``OwnListener.guard``); otherwise ``NotOurServer`` is raised, of which
``transport.py`` makes ``PortTaken``.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from ...util.text import one_line
from ..ports import HOST
from ..processes.waits import descriptors

_TABLES = {socket.AF_INET: Path("/proc/net/tcp"), socket.AF_INET6: Path("/proc/net/tcp6")}
_LISTEN = 10
_SOCK_DIAG = 4  # of linux/netlink.h; so are the next three
_SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP = 20, 0x301
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBxxI2s46x")
"""``inet_diag_req_v2`` of linux/inet_diag.h: family, protocol, states, and the port."""
_SOCKET = struct.Struct("=4x2x2x16s16x4x8x4x4x4xII")
"""``inet_diag_msg``: address, uid, inode."""
_LOOPBACK = frozenset({"127.0.0.1", "::ffff:127.0.0.1"})
_WILDCARD = frozenset({"0.0.0.0", "::", "::ffff:0.0.0.0"})

_ATTEMPTS, _BETWEEN_S = 3, 0.02
"""A process that is ending has no descriptors any more, while its socket is still in the table for
a moment."""
_STARTED, _COMPLETE = "connection.connect_tcp.started", "connection.connect_tcp.complete"


@dataclass(frozen=True)
class Listener:
    """A listening socket: its address, the user that made it, and its inode, by which a process's
    descriptors name it."""

    address: str
    uid: int
    inode: int

    def __str__(self) -> str:
        """The user, and the processes that have the socket open as far as this user may see."""
        holders = (
            "; ".join(_holders(self.inode))
            or "its process belongs to somebody else and cannot be seen"
        )
        return f"{describe_user(self.uid)} on {self.address}: {holders}"


def on_port(port: int) -> tuple[Listener, ...]:
    """Return every listening socket on ``port``, of whatever address and user."""
    try:
        return tuple(listener for family in _TABLES for listener in _asked(family, port))
    except OSError:  # a kernel or a sandbox without it
        return tuple(listener for family in _TABLES for listener in _read(family, port))


def for_loopback(port: int) -> tuple[Listener, ...]:
    """Return the sockets among which the kernel chooses for a connection to 127.0.0.1. Those bound
    to this address precede those of every address.

    A socket on [::] counts although it may be for IPv6 only, which the table does not say.
    """
    listeners = on_port(port)
    exact = tuple(listener for listener in listeners if listener.address in _LOOPBACK)
    return exact or tuple(listener for listener in listeners if listener.address in _WILDCARD)


def descriptor_of(pid: int, inode: int) -> str | None:
    """Return the path below /proc of a descriptor of ``pid`` that is the socket ``inode``; None if
    it has none, or access to it is denied."""
    for number, target in descriptors(pid).items():
        if target == f"socket:[{inode}]":
            return f"/proc/{pid}/fd/{number}"
    return None


def is_socket(descriptor: str, inode: int) -> bool:
    """Return whether a path from ``descriptor_of`` still is that socket."""
    with suppress(OSError):
        return os.readlink(descriptor) == f"socket:[{inode}]"
    return False


def describe_user(uid: int) -> str:
    """Return name and number of a user."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


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
        present = for_loopback(self._port)
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

    def guard(self, request: Any) -> None:
        """Make ``request`` check the connection that it opens: an event hook of clients like
        httpx's, also of OpenAI's."""
        before: dict[str, frozenset[int]] = {}

        def trace(event: str, info: Mapping[str, Any]) -> None:
            if not self._proves(event, info, before):
                info["return_value"].close()
                raise NotOurServer(self._changed())

        request.extensions = {**request.extensions, "trace": trace}

    async def guard_async(self, request: Any) -> None:
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
            if process.is_running() and is_socket(descriptor, inode):
                return True
        for process in self._processes():
            opened = descriptor_of(process.pid, inode)
            if opened and process.is_running():
                self._proven[inode] = process, opened
                return True
        return False


def _asked(family: socket.AddressFamily, port: int) -> Iterator[Listener]:
    """Ask the kernel for the listeners on ``port``. It takes a hundredth of the time of ``_read``,
    for which the kernel goes through a table of all connections that there may be."""
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << _LISTEN, port.to_bytes(2, "big"))
    header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
        kernel.sendto(header + body, (0, 0))
        while True:
            data = kernel.recv(1 << 16)
            while data:
                length, kind, *_ = _HEADER.unpack_from(data)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError("the kernel does not tell who listens")
                packed, uid, inode = _SOCKET.unpack_from(data, _HEADER.size)
                yield Listener(_text(family, packed), uid, inode)
                data = data[(length + 3) & ~3 :]


def _read(family: socket.AddressFamily, port: int) -> Iterator[Listener]:
    try:
        lines = _TABLES[family].read_text(encoding="ascii").splitlines()[1:]
    except FileNotFoundError:  # a kernel without IPv6
        return
    suffix = f":{port:04X}"
    for line in lines:
        fields = line.split()
        if fields[3] == f"{_LISTEN:02X}" and fields[1].endswith(suffix):
            # The address is in words of 32 bits, in the machine's byte order.
            digits = fields[1].partition(":")[0]
            words = [int(digits[start : start + 8], 16) for start in range(0, len(digits), 8)]
            address = _text(family, struct.pack(f"={len(words)}I", *words))
            yield Listener(address, int(fields[7]), int(fields[9]))


def _text(family: socket.AddressFamily, packed: bytes) -> str:
    return socket.inet_ntop(family, packed[: 4 if family == socket.AF_INET else 16])


def _holders(inode: int) -> Iterator[str]:
    for pid in psutil.pids():
        if descriptor_of(pid, inode):
            name = ""
            with suppress(psutil.Error):
                name = psutil.Process(pid).name()
            yield f"process {pid} ({one_line(name)})"
