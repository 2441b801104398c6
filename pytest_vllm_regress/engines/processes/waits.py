"""What a process waits for, and which process it waits for, read from /proc. Linux."""

from __future__ import annotations

import math
import os
import platform
import re
import tomllib
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

_PROC = Path("/proc")
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_CALLS = {int(number): name for number, name in _TABLE.get(platform.machine(), {}).items()}
_MOST = 6


def sleeps(task: int) -> bool:
    """Return whether a thread sleeps until a timer and waits for nothing else."""
    return _system_call(task)[0] in _TABLE["sleeps"]


def alarm_of(task: int) -> float:
    """Return the timeout of a thread's wait in seconds: infinity for none, 0 for one that cannot be
    read from outside."""
    call, arguments = _system_call(task)
    if call in _TABLE["milliseconds"]:
        milliseconds = arguments[_TABLE["milliseconds"][call]] & 0xFFFFFFFF
        return math.inf if milliseconds >= 1 << 31 else milliseconds / 1000
    address = _TABLE["address"].get(call)
    timed = (
        not call or call in _TABLE["sleeps"] or (address is not None and arguments[address] != 0)
    )
    return 0.0 if timed else math.inf


def _system_call(task: int) -> tuple[str, tuple[int, ...]]:
    """Return the system call that a thread is in, with its arguments; empty if it runs, is gone, or
    cannot be read."""
    with suppress(OSError, ValueError):
        words = (_PROC / str(task) / "syscall").read_text().split()
        return _CALLS.get(int(words[0]), ""), tuple(int(word, 16) for word in words[1:7])
    return "", ()


class Waits:
    """A snapshot of the open files and connections of a process tree, for describing what its
    members wait for.

    A process that is stopped inside a system call still shows the call. ``held``: pids of those
    that ran until they were stopped.
    """

    def __init__(self, tree: Sequence[psutil.Process], held: Container[int] = ()) -> None:
        self._tree = tuple(tree)
        self._held = held
        self._files = {process.pid: descriptors(process.pid) for process in tree}
        self._peers: dict[
            str, str
        ] = {}  # inode of a socket: that of its other end, of connections within the machine
        ends = (
            {local: (inode, remote) for inode, local, remote in _tcp(tree[0].pid)} if tree else {}
        )
        for inode, remote in ends.values():
            if remote in ends:
                self._peers[f"socket:[{inode}]"] = f"socket:[{ends[remote][0]}]"

    def describe(self, process: psutil.Process) -> str:
        """Return one line on what the main thread waits for and which processes hold the other end;
        empty if the process is gone."""
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
        if call in _TABLE["on_descriptor"]:
            return self._end(pid, argument)
        if call.startswith("epoll"):
            watched = [self._end(pid, number) for number in _watched(pid, argument)]
            shared_ends = [end for end in dict.fromkeys(watched) if "held by" in end]
            return f" over {len(watched)} descriptors{'; among them' + ';'.join(shared_ends[:_MOST]) if shared_ends else ''}"
        if call in ("wait4", "waitid"):
            below = [str(process.pid) for process in self._tree if _parent(process) == pid]
            return f" for its children {', '.join(below[:_MOST])}" if below else " for a child"
        if call.startswith("futex"):
            return ": a lock or condition of its own threads, or in shared memory"
        return ""

    def _end(self, pid: int, number: int) -> str:
        """Describe a descriptor, with the other processes of the tree that hold its other end or
        the same file."""
        target = self._files[pid].get(number)
        if target is None:
            return f" of descriptor {number}"
        holders = self._holders(pid, target)
        name = re.sub(r":\[\d+\]$", "", target).removeprefix("anon_inode:")
        return f" of {name}" + (f" held by {', '.join(holders[:_MOST])}" if holders else "")

    def _holders(self, pid: int, target: str) -> list[str]:
        other_end = (
            self._peers.get(target)
            if target.startswith("socket:")
            else target
            if target.startswith(("pipe:", "/"))
            else None
        )
        if other_end is None:
            return []
        return [
            _name(other)
            for other in self._tree
            if other.pid != pid and other_end in self._files[other.pid].values()
        ]


def descriptors(pid: int) -> dict[int, str]:
    """Return what the open descriptors of a process are, by number."""
    targets = {}
    with suppress(OSError):
        for entry in os.scandir(_PROC / str(pid) / "fd"):
            with suppress(OSError):
                targets[int(entry.name)] = os.readlink(entry.path)
    return targets


def _watched(pid: int, epoll: int) -> list[int]:
    """Return the descriptors that an epoll instance watches (proc(5), fdinfo)."""
    with suppress(OSError):
        return [
            int(number)
            for number in re.findall(
                r"tfd:\s*(\d+)", (_PROC / str(pid) / "fdinfo" / str(epoll)).read_text()
            )
        ]
    return []


def _tcp(pid: int) -> Iterator[tuple[str, str, str]]:
    """Yield (inode, local end, remote end) of the TCP connections in a process's network namespace,
    in the notation of /proc."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROC / str(pid) / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                yield fields[9], fields[1], fields[2]


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return f"{process.pid} {process.name()}"
    return str(process.pid)


def _parent(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.ppid())
    return 0
