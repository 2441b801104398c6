"""Cheap snapshots of a process tree, twice a second: its processes from /proc, and what they log.

Linux.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ...target_site.vllm_regress_target.nanny import descendants
from ...util import patterns
from ...util.masking import Masked, mask
from .stillness import Member, Snapshot, Thread
from .waits import alarm_of, sleeps

_CENSUS_S = 2.0  # seconds between two searches for descendants, which read /proc for every process of the machine
_CHUNK = 1 << 18
_CARRY = 4096
_MOST_LINES = 20_000
_TICK = os.sysconf("SC_CLK_TCK")
_DAEMON = re.compile(
    rb"/ray/(?:core/src/ray/|dashboard/|autoscaler/|_private/(?:log_monitor|runtime_env/agent|process_watcher))"
)
_NUMBERS = re.compile(rb"0x[0-9a-f]+|\d+")
_RAYLET = re.compile(rb"\(raylet\b[^)]*\)")  # before what Ray's log monitor passes on
_WOKEN = b"voluntary_ctxt_switches:"
_EXCERPT = 200
_SEARCH_S = 1.0
_RAY_LOGS = ("worker-*.err", "raylet.err", "raylet.out")


class ProcessSampler:
    """Takes snapshots of everything below ``nanny``, or, without ``orphans``, only of ``responder``
    and its descendants."""

    def __init__(self, nanny: int, responder: int, *, orphans: bool = True) -> None:
        self._nanny, self._responder, self._orphans = nanny, responder, orphans
        self._pids: Sequence[int] = ()
        self._daemons: dict[int, bool] = {}
        self._census_at = float("-inf")

    def snapshot(self, now: float, logs: LogFollower) -> Snapshot:
        """Return the snapshot at time ``now``, with the state of ``logs`` as last read."""
        if now - self._census_at >= _CENSUS_S or not all(map(_lives, self._pids)):
            self._census_at = now
            self._pids = (
                descendants(self._nanny)
                if self._orphans
                else [self._responder, *descendants(self._responder)]
            )
        members = {}
        reaped = 0
        for pid in (self._nanny, *self._pids):
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = _stat(pid)
                reaped += int(fields[13]) + int(fields[14])
                if pid != self._nanny:
                    members[pid] = self._member(pid, fields)
        return Snapshot(
            now, members, self._responder, reaped / _TICK, logs.size, logs.novel, logs.matches
        )

    def _member(self, pid: int, fields: list[bytes]) -> Member:
        daemon = self._is_daemon(pid)
        if fields[0] == b"Z":
            raise ValueError("a zombie has ended")
        cpu = (int(fields[11]) + int(fields[12])) / _TICK
        wake_ups = _number(pid, "status", _WOKEN)
        if daemon:
            return Member(fields[0].decode(), cpu, 0, int(fields[9]), wake_ups, daemon=True)
        return Member(
            fields[0].decode(),
            cpu,
            _number(pid, "io", b"rchar:") + _number(pid, "io", b"wchar:"),
            int(fields[9]),
            wake_ups,
            alarm_of(pid),
            connections=_connections(pid),
        )

    def _is_daemon(self, pid: int) -> bool:
        if pid not in self._daemons:
            self._daemons[pid] = bool(_DAEMON.search(Path(f"/proc/{pid}/cmdline").read_bytes()))
        return self._daemons[pid]

    def threads(self) -> dict[int, Thread]:
        """Return the threads of all processes except Ray's daemons."""
        threads = {}
        for pid in self._pids:
            with contextlib.suppress(OSError, ValueError, IndexError):
                for tid in (
                    () if self._is_daemon(pid) else map(int, os.listdir(f"/proc/{pid}/task"))
                ):
                    state = _stat(tid)[0].decode()
                    threads[tid] = Thread(state, _number(tid, "status", _WOKEN), sleeps(tid))
        return threads


class LogFollower:
    """Follows what a process tree logs from now on: its own file and Ray's.

    ``size``: bytes, without what a raylet merely repeats. ``novel``: lines unlike any before.
    ``matches``: reads with a new match of ``pattern``.
    ``excerpt``: the first match, masked. The pattern is searched in the text as it was logged,
    because a secret may separate two words that it names.
    """

    def __init__(self, log: Path, ray_dir: Path | None, pattern: str | None = None) -> None:
        self.size = self.novel = self.matches = 0
        self.excerpt = Masked("")
        self._pattern = pattern
        self._log, self._ray_dir = log, ray_dir
        self._ends = {path: _size(path) for path in self._files()}
        self._carry: dict[Path, bytes] = {}
        self._lines: set[bytes] = set()

    def read(self) -> None:
        """Read what was logged since the last read, at most ``_CHUNK`` bytes per file."""
        matches = False
        for path in self._files():
            end, size = self._ends.get(path, 0), _size(path)
            if size == end:
                continue
            if size < end:  # the nanny removed the middle of a log that was too long
                self.size += end - size
                end = max(0, size - _CARRY)
            with contextlib.suppress(OSError), path.open("rb") as file:
                file.seek(max(end, size - _CHUNK))
                new = file.read(size - file.tell())
                before = self._carry.get(path, b"")
                if (match := self._new_match(before, new)) is not None:
                    matches = True
                    self.excerpt = self.excerpt or match
                self._carry[path] = (before + new)[-_CARRY:]
                self._note(new, path.name.startswith("raylet"))
            self._ends[path] = size
        self.matches += matches

    def _new_match(self, before: bytes, new: bytes) -> Masked | None:
        """Return the first match of the pattern that ends in the new text, masked and truncated."""
        old_length = len(before.decode(errors="replace"))
        text = (before + new).decode(errors="replace")
        at = 0
        while self._pattern is not None:
            try:
                span = patterns.search(self._pattern, text[at:], _SEARCH_S)
            except patterns.PatternError:  # this wait goes on to its deadline
                self._pattern = None
                return None
            if span is None:
                return None
            start, end = at + span[0], at + span[1]
            if end > old_length:
                return Masked(mask(text[start:end])[:_EXCERPT])
            at = max(end, start + 1)
        return None

    def _note(self, text: bytes, by_raylet: bool) -> None:
        """Count lines.

        A repeated line of a raylet is no progress: it reports a nearly full disk every ten seconds.
        """
        for line in text.splitlines(keepends=True):
            plain = _NUMBERS.sub(b"#", line).strip()
            novel = bool(plain) and plain not in self._lines
            self.novel += novel
            if novel and len(self._lines) < _MOST_LINES:
                self._lines.add(plain)
            if novel or not (by_raylet or _RAYLET.search(line)):
                self.size += len(line)

    def _files(self) -> list[Path]:
        ray = self._ray_dir
        return [
            self._log,
            *(
                path
                for name in _RAY_LOGS
                for path in (ray.glob(f"session_2*/logs/{name}") if ray else ())
            ),
        ]


def _stat(task: int) -> list[bytes]:
    """Return the fields of a process or thread, starting with its state (proc(5))."""
    with open(f"/proc/{task}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _lives(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        return _stat(pid)[0] not in (b"Z", b"X")
    return False


def _number(task: int, file: str, name: bytes) -> int:
    """Return the number after ``name`` at the start of a line."""
    with open(f"/proc/{task}/{file}", "rb") as opened:
        _, _, value = (b"\n" + opened.read()).partition(b"\n" + name)
    return int(value.split(None, 1)[0])


def _connections(pid: int) -> frozenset[str]:
    """Return the sockets that a process holds: every new attempt to connect gets another one."""
    sockets = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)
                if target.startswith("socket:"):
                    sockets.add(target)
    return frozenset(sockets)


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0
