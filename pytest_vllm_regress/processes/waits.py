"""What a process sleeps on, and whose turn it is: read from /proc. Linux."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

import psutil

_PROC = Path("/proc")
# System calls by number, where the first argument is a descriptor, a process, or neither. From the kernel's tables of each architecture.
_X86 = {
    0: "read",
    45: "recvfrom",
    47: "recvmsg",
    43: "accept",
    288: "accept4",
    73: "flock",
    1: "write",
    44: "sendto",
    46: "sendmsg",
    232: "epoll_wait",
    281: "epoll_pwait",
    441: "epoll_pwait2",
    7: "poll",
    271: "ppoll",
    23: "select",
    270: "pselect6",
    61: "wait4",
    247: "waitid",
    202: "futex",
    449: "futex_waitv",
    35: "nanosleep",
    230: "clock_nanosleep",
}
_ARM = {
    63: "read",
    207: "recvfrom",
    212: "recvmsg",
    202: "accept",
    242: "accept4",
    32: "flock",
    64: "write",
    206: "sendto",
    211: "sendmsg",
    22: "epoll_pwait",
    441: "epoll_pwait2",
    73: "ppoll",
    72: "pselect6",
    260: "wait4",
    95: "waitid",
    98: "futex",
    449: "futex_waitv",
    101: "nanosleep",
    115: "clock_nanosleep",
}
_CALLS = {"x86_64": _X86, "aarch64": _ARM}.get(platform.machine(), {})
_ON_DESCRIPTOR = frozenset({"read", "recvfrom", "recvmsg", "accept", "accept4", "flock", "write", "sendto", "sendmsg"})
_MOST = 6


_SLEEPS = frozenset({"nanosleep", "clock_nanosleep"})
# Which argument says for how long: milliseconds, below zero for ever, or an address, none for ever.
_MILLISECONDS = {"poll": 2, "epoll_wait": 3, "epoll_pwait": 3}
_ADDRESS = {"ppoll": 2, "select": 4, "pselect6": 4, "futex": 3, "epoll_pwait2": 3}


def sleeps(task: int) -> bool:
    """Whether a thread sleeps until an alarm, and for nothing else."""
    return _system_call(task)[0] in _SLEEPS


def alarm_of(task: int) -> float:
    """The seconds that a thread waits at most, whatever the others do: infinity for ever, 0 for a time that cannot be read from outside."""
    call, arguments = _system_call(task)
    if call in _MILLISECONDS:
        milliseconds = arguments[_MILLISECONDS[call]] & 0xFFFFFFFF
        return math.inf if milliseconds >= 1 << 31 else milliseconds / 1000
    timed = not call or call in _SLEEPS or (call in _ADDRESS and arguments[_ADDRESS[call]] != 0)
    return 0.0 if timed else math.inf


def _system_call(task: int) -> tuple[str, tuple[int, ...]]:
    """The call a thread is in and its arguments; empty when it runs, is gone, or the kernel does not say."""
    with contextlib.suppress(OSError, ValueError):
        words = (_PROC / str(task) / "syscall").read_text().split()
        return _CALLS.get(int(words[0]), ""), tuple(int(word, 16) for word in words[1:7])
    return "", ()


class Waits:
    """A snapshot of a family's open files and connections, looked up when its members are described.

    A process that was stopped in the middle of a system call still names the call; ``held`` are the pids of those that ran until then.
    """

    def __init__(self, family: Sequence[psutil.Process], held: Container[int] = ()) -> None:
        self._family = tuple(family)
        self._held = held
        self._files = {each.pid: _targets(each.pid) for each in family}
        self._peers: dict[str, str] = {}  # inode of a socket: that of its other end, of connections within the machine
        ends = {local: (inode, remote) for inode, local, remote in _tcp(family[0].pid)} if family else {}
        for inode, remote in ends.values():
            if remote in ends:
                self._peers[f"socket:[{inode}]"] = f"socket:[{ends[remote][0]}]"

    def describe(self, process: psutil.Process) -> str:
        """One line on what the process's main thread waits for, naming those of the family at the other end; empty when it is gone."""
        try:
            words = (_PROC / str(process.pid) / "syscall").read_text().split()
        except PermissionError:
            return "waits: the kernel does not say (ptrace is not permitted)"
        except OSError:
            return ""
        if words[0] == "running":
            return "waits: no, it runs"
        if words[0] == "-1":
            return "waits: no, it ran" if process.pid in self._held else "waits: it is stopped"
        call = _CALLS.get(int(words[0]), f"system call {words[0]}")
        argument = int(words[1], 16) if len(words) > 1 else 0
        return f"waits: in {call}{self._about(process.pid, call, argument)}"

    def _about(self, pid: int, call: str, argument: int) -> str:
        if call in _ON_DESCRIPTOR:
            return self._end(pid, argument)
        if call.startswith("epoll"):
            watched = [self._end(pid, number) for number in _watched(pid, argument)]
            named = [each for each in dict.fromkeys(watched) if "held by" in each]
            return f" over {len(watched)} descriptors{'; among them' + ';'.join(named[:_MOST]) if named else ''}"
        if call in ("wait4", "waitid"):
            below = [str(each.pid) for each in self._family if _parent(each) == pid]
            return f" for its children {', '.join(below[:_MOST])}" if below else " for a child"
        if call.startswith("futex"):
            return ": a lock or condition of its own threads, or in shared memory"
        return ""

    def _end(self, pid: int, number: int) -> str:
        """A descriptor in words, with the other processes of the family that hold its other end or the same file."""
        target = self._files[pid].get(number)
        if target is None:
            return f" of descriptor {number}"
        found = self._holders(pid, target)
        what = re.sub(r":\[\d+\]$", "", target).removeprefix("anon_inode:")
        return f" of {what}" + (f" held by {', '.join(found[:_MOST])}" if found else "")

    def _holders(self, pid: int, target: str) -> list[str]:
        wanted = (
            self._peers.get(target)
            if target.startswith("socket:")
            else target
            if target.startswith(("pipe:", "/"))
            else None
        )
        if wanted is None:
            return []
        return [_name(each) for each in self._family if each.pid != pid and wanted in self._files[each.pid].values()]


def _targets(pid: int) -> dict[int, str]:
    found = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir(_PROC / str(pid) / "fd"):
            with contextlib.suppress(OSError):
                found[int(entry.name)] = os.readlink(entry.path)
    return found


def _watched(pid: int, epoll: int) -> list[int]:
    """The descriptors that an epoll instance looks at (proc(5), fdinfo)."""
    with contextlib.suppress(OSError):
        return [
            int(number)
            for number in re.findall(r"tfd:\s*(\d+)", (_PROC / str(pid) / "fdinfo" / str(epoll)).read_text())
        ]
    return []


def _tcp(pid: int) -> Iterator[tuple[str, str, str]]:
    """(inode, local end, remote end) of the TCP connections in a process's network namespace, as /proc words them."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (_PROC / str(pid) / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                yield fields[9], fields[1], fields[2]


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} {process.name()}"
    return str(process.pid)


def _parent(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return int(process.ppid())
    return 0
