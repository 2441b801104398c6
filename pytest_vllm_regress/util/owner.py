"""Identify a process uniquely: across pid reuse, containers, machines and reboots."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_IN_TAG = re.compile(r"-(\d{1,10})\.(\d{1,20})\.(\d{1,20})-[0-9a-f]+$")


class State(enum.Enum):
    """Whether an owner is alive, as far as can be proven."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "cannot be seen from here"


@dataclasses.dataclass(frozen=True)
class Owner:
    """A process.

    ``ticks`` is its start time in kernel clock ticks (never set back), ``namespace`` the pid
    namespace of ``pid``.
    """

    pid: int
    ticks: int
    namespace: int
    boot: str
    host: str

    @classmethod
    def me(cls) -> Owner:
        """Return the current process."""
        pid = os.getpid()
        return cls(pid, start_ticks(pid) or 0, _namespace(pid), _boot_id(), socket.gethostname())

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Owner:
        """Build from the output of ``dataclasses.asdict``.

        Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else.
        """
        return cls(
            int(plain["pid"]),
            int(plain["ticks"]),
            int(plain["namespace"]),
            str(plain["boot"]),
            str(plain["host"]),
        )

    @classmethod
    def from_tag(cls, tag: str) -> Owner | None:
        """Return the owner named in the tag of a run; None for any other tag.

        Assumes this boot and machine, so it is only for the tags of running processes.
        """
        match = _IN_TAG.search(tag)
        return (
            cls(int(match[1]), int(match[2]), int(match[3]), _boot_id(), socket.gethostname())
            if match
            else None
        )

    @property
    def since(self) -> float:
        """Start time in seconds since the epoch, early by at most one clock tick.

        Only valid for a process of this boot.
        """
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return booted + self.ticks / os.sysconf("SC_CLK_TCK")

    def tag(self, run: str, secret: str) -> str:
        """Return a tag for the run that contains this owner."""
        return f"{run}-{self.pid}.{self.ticks}.{self.namespace}-{secret}"

    def state(self) -> State:
        """Return whether the process is alive or gone, or unknown where neither can be proven."""
        if self.boot != _boot_id():  # rebooted, or the directory is shared with another machine
            return State.GONE if self.host == socket.gethostname() else State.UNKNOWN
        if self.namespace != _namespace(
            os.getpid()
        ):  # one of the two is in a container: the pid is meaningless here
            return State.UNKNOWN
        return State.ALIVE if start_ticks(self.pid) == self.ticks else State.GONE


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None if it has ended.

    Zombies count as ended.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    return None


def same_namespace(pid: int) -> bool:
    """Return whether the process is in this process's pid namespace."""
    namespace = _namespace(pid)
    return namespace != 0 and namespace == _namespace(os.getpid())


def _namespace(pid: int) -> int:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    return 0


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
