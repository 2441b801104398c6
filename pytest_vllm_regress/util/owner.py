"""Whose something is: a process named so that it can be told apart from every other, in other containers, on other machines and after a reboot."""

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
    """What is known about an owner."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "cannot be seen from here"


@dataclasses.dataclass(frozen=True)
class Owner:
    """A process: ``ticks`` is its start by the kernel's clock (which nobody sets back), ``namespace`` the pid namespace that ``pid`` is of."""

    pid: int
    ticks: int
    namespace: int
    boot: str
    host: str

    @classmethod
    def me(cls) -> Owner:
        """This process."""
        pid = os.getpid()
        return cls(pid, start_ticks(pid) or 0, _namespace(pid), _boot_id(), socket.gethostname())

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Owner:
        """What ``dataclasses.asdict`` gave. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
        return cls(
            int(plain["pid"]), int(plain["ticks"]), int(plain["namespace"]), str(plain["boot"]), str(plain["host"])
        )

    @classmethod
    def from_tag(cls, tag: str) -> Owner | None:
        """The owner that a run's tag names; None for a tag that is no run's. For tags of living processes: those are of this boot and machine."""
        found = _IN_TAG.search(tag)
        return cls(int(found[1]), int(found[2]), int(found[3]), _boot_id(), socket.gethostname()) if found else None

    @property
    def since(self) -> float:
        """When the process started, in seconds since the epoch. For one of this boot; early by a clock tick at most."""
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return booted + self.ticks / os.sysconf("SC_CLK_TCK")

    def tag(self, run: str, secret: str) -> str:
        """A tag for the run that names this owner."""
        return f"{run}-{self.pid}.{self.ticks}.{self.namespace}-{secret}"

    def state(self) -> State:
        """Alive or gone, where that can be proven."""
        if self.boot != _boot_id():  # rebooted, unless the directory is shared with another machine
            return State.GONE if self.host == socket.gethostname() else State.UNKNOWN
        if self.namespace != _namespace(os.getpid()):  # a container's, or we are in one: the pid means nothing here
            return State.UNKNOWN
        return State.ALIVE if start_ticks(self.pid) == self.ticks else State.GONE


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when there is none (a zombie has ended)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    return None


def same_namespace(pid: int) -> bool:
    """The process counts pids as this one does."""
    found = _namespace(pid)
    return found != 0 and found == _namespace(os.getpid())


def _namespace(pid: int) -> int:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    return 0


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
