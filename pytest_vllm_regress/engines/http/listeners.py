"""Who listens on a TCP port of this machine, from the kernel's tables (proc_pid_net(5),
proc_net_tcp.rst in the kernel's documentation)."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pwd
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from ...util.text import one_line

_TABLES = ((Path("/proc/net/tcp"), 4), (Path("/proc/net/tcp6"), 16))
_LISTEN = "0A"
_LOOPBACK = frozenset({"127.0.0.1", "::ffff:127.0.0.1"})
_WILDCARD = frozenset({"0.0.0.0", "::", "::ffff:0.0.0.0"})


@dataclasses.dataclass(frozen=True)
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
    return tuple(listener for path, size in _TABLES for listener in _read(path, size, port))


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
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if is_socket(f"{folder}/{name}", inode):
                return f"{folder}/{name}"
    return None


def is_socket(descriptor: str, inode: int) -> bool:
    """Return whether a path from ``descriptor_of`` still is that socket."""
    with contextlib.suppress(OSError):
        return os.readlink(descriptor) == f"socket:[{inode}]"
    return False


def describe_user(uid: int) -> str:
    """Return name and number of a user."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _read(path: Path, size: int, port: int) -> Iterator[Listener]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()[1:]
    except FileNotFoundError:  # a kernel without IPv6
        return
    suffix = f":{port:04X}"
    for line in lines:
        fields = line.split()
        if fields[3] == _LISTEN and fields[1].endswith(suffix):
            yield Listener(
                _address(fields[1].partition(":")[0], size), int(fields[7]), int(fields[9])
            )


def _address(digits: str, size: int) -> str:
    """Return the address that the kernel wrote as 32-bit words in the machine's byte order."""
    words = [int(digits[start : start + 8], 16) for start in range(0, 2 * size, 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if size == 4 else socket.AF_INET6, packed)


def _holders(inode: int) -> Iterator[str]:
    for entry in os.listdir("/proc"):
        if entry.isdigit() and descriptor_of(int(entry), inode):
            name = ""
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{entry}/comm").read_text(errors="replace").strip()
            yield f"process {entry} ({one_line(name)})"
