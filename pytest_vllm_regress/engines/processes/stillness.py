"""Decide from snapshots whether a process tree stands still. Pure functions: no clock, no files, no
processes.

Used only after the text of a documented hang was logged (``early_exit.py``). The tree then stands
still if it made no progress for a settling time: the same processes, hardly any CPU time, nothing
read, written or logged, no new connection. It repeats one step if workers die and are restarted,
log the same each time, and everything else stands still. A process that may continue by itself
never counts as still: one that is stopped, is runnable but gets no CPU, waits for a disk, or sleeps
until a timer that it has set.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

SETTLE_S = 10.0
SNAPSHOT_INTERVAL_S = 0.5
_MOST_CORES = 0.08  # all processes together, without Ray's daemons
_DAEMON_CORES = 0.05  # per Ray daemon; an idle one uses 0.01, and two Rays have fourteen of them
_MOST_BYTES = 1024.0  # per second, read and written by all processes together
_MOST_FAULTS = 1.0  # page faults per second that waited for a disk
_MOST_WAKE_UPS = 12.0  # timer wake-ups per second: an idle server polls ten times a second
_ROUNDS = 4  # wake-ups without progress that count as polling
_REPEATS = 5  # restarts with the same log lines that count as repeating one step
_RUNNABLE_SHARE = 0.5  # a process that is runnable in a larger share of the snapshots is working


@dataclass(frozen=True)
class Member:
    """One process in a snapshot. ``cpu`` in seconds, ``bytes`` read and written, ``faults``: page
    faults that waited for a disk.

    Of its main thread: ``state``, the kernel's letter; ``wake_ups``; ``alarm``, its timeout in
    seconds (infinity: none; 0: unknown).
    ``daemon``: one of Ray's own processes, which always read and write a little.
    """

    state: str
    cpu: float
    bytes: int = 0
    faults: int = 0
    wake_ups: int = 0
    alarm: float = math.inf
    daemon: bool = False
    connections: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Snapshot:
    """Snapshot of a process tree at time ``at`` (seconds). ``responder``: pid of the process that
    must send the answer. ``reaped``: CPU seconds of members that have ended.

    Of its logs: ``logged`` bytes, ``novel`` lines unlike any before, ``matches``: number of
    snapshots with a new occurrence of the documented text.
    """

    at: float
    members: Mapping[int, Member]
    responder: int
    reaped: float = 0.0
    logged: int = 0
    novel: int = 0
    matches: int = 0


@dataclass(frozen=True)
class Thread:
    """One thread in a snapshot. ``sleeps``: it waits for a timer and nothing else."""

    state: str
    wake_ups: int
    sleeps: bool


@dataclass(frozen=True)
class Stillness:
    """A tree without progress for ``seconds``.

    ``repeats``: how often it repeated the same step, 0 if it does nothing.
    """

    seconds: float
    repeats: int = 0

    def __str__(self) -> str:
        if self.repeats:
            return f"the same step again for {self.seconds:.0f} s"
        return f"still for {self.seconds:.0f} s"


def detect_stillness(snapshots: Sequence[Snapshot], settle_s: float = SETTLE_S) -> Stillness | None:
    """Return how the tree stands still, or repeats itself, at the last of ``snapshots`` (oldest
    first); None if it may still make progress."""
    if not snapshots or not snapshots[-1].matches:
        return None
    need = max(settle_s, *(_ROUNDS * alarm for alarm in _alarms(snapshots)), 0.0)
    window = _last(snapshots, need)
    if window is not None and _same_processes(window) and not _moves(window):
        return Stillness(window[-1].at - window[0].at)
    window = _last(snapshots, max(3 * settle_s, need, _since_repeats(snapshots)))
    if window is not None and _come_and_go(window):
        repeats = window[-1].matches - window[0].matches
        if window[-1].novel == window[0].novel and not _moves(_lasting(window), repeating=True):
            return Stillness(window[-1].at - window[0].at, repeats)
    return None


def is_quiet(snapshots: Sequence[Snapshot], seconds: float) -> bool:
    """Return whether the tree made no progress for the last ``seconds``.

    Timers are ignored, so it may continue later.
    """
    window = _last(snapshots, seconds)
    return window is not None and _same_processes(window) and not _moves(window)


def may_continue_by_itself(before: Mapping[int, Thread], after: Mapping[int, Thread]) -> bool:
    """Return whether a thread was runnable, waited for a disk, or slept in two successive
    snapshots: it may continue and wake others."""
    pairs = [(before[number], thread) for number, thread in after.items() if number in before]
    return any(
        a.state == b.state == "R"
        or (a.wake_ups == b.wake_ups and (a.state == b.state == "D" or (a.sleeps and b.sleeps)))
        for a, b in pairs
    )


def _since_repeats(snapshots: Sequence[Snapshot]) -> float:
    """Return the seconds since the last but ``_REPEATS`` match of the text; infinity if there are
    fewer matches."""
    enough = (
        snapshot.at
        for snapshot in reversed(snapshots)
        if snapshot.matches <= snapshots[-1].matches - _REPEATS
    )
    return snapshots[-1].at - next(enough, -math.inf)


def _last(snapshots: Sequence[Snapshot], seconds: float) -> Sequence[Snapshot] | None:
    """Return the snapshots of at least the last ``seconds``; None if there are too few, or gaps in
    which anything may have happened."""
    start = next(
        (
            at
            for at in reversed(range(len(snapshots)))
            if snapshots[-1].at - snapshots[at].at >= seconds
        ),
        None,
    )
    if start is None:
        return None
    window = snapshots[start:]
    return window if len(window) > seconds / SNAPSHOT_INTERVAL_S / 4 else None


def _same_processes(window: Sequence[Snapshot]) -> bool:
    return all(snapshot.members.keys() == window[0].members.keys() for snapshot in window)


def _come_and_go(window: Sequence[Snapshot]) -> bool:
    """Return whether processes end and others start.

    Short-lived ones may fall between two snapshots; their CPU time shows them.
    """
    return not _same_processes(window) or window[-1].reaped > window[0].reaped


def _lasting(window: Sequence[Snapshot]) -> Sequence[Snapshot]:
    """Return the snapshots, reduced to the processes that are in all of them."""
    common = frozenset.intersection(*(frozenset(snapshot.members) for snapshot in window))
    return [
        replace(
            snapshot,
            members={pid: member for pid, member in snapshot.members.items() if pid in common},
        )
        for snapshot in window
    ]


def _moves(window: Sequence[Snapshot], repeating: bool = False) -> bool:
    """Return whether the tree made progress, or may make progress by itself.

    ``repeating``: ignore what restarting workers do. They use CPU time, write logs and wake their
    parents, and the kernel adds what they read to their parent.
    """
    first, last = window[0], window[-1]
    seconds = last.at - first.at
    if not last.members or last.responder not in last.members:
        return True
    pairs = [(first.members[pid], member) for pid, member in last.members.items()]
    cpu = sum(b.cpu - a.cpu for a, b in pairs if not b.daemon) + (
        0.0 if repeating else last.reaped - first.reaped
    )
    busiest = max((b.cpu - a.cpu for a, b in pairs if b.daemon), default=0.0)
    wrote = sum(b.bytes - a.bytes for a, b in pairs if not b.daemon)
    faults = sum(b.faults - a.faults for a, b in pairs)
    return (
        cpu > _MOST_CORES * seconds
        or busiest > _DAEMON_CORES * seconds
        or (not repeating and wrote > _MOST_BYTES * seconds)
        or faults > _MOST_FAULTS * seconds
        or (
            not repeating
            and _is_woken([snapshot.members[last.responder] for snapshot in window], seconds)
        )
        or (not repeating and last.logged != first.logged)
        or any(a.connections != b.connections for a, b in pairs if not b.daemon)
        or any(
            _may_go_on([snapshot.members[pid] for snapshot in window], repeating)
            for pid in last.members
        )
    )


def _is_woken(snapshots: Sequence[Member], seconds: float) -> bool:
    """Return whether something other than its own periodic timer wakes the process."""
    alarm = max(snapshot.alarm for snapshot in snapshots)
    allowed = (
        _MOST_WAKE_UPS * seconds if alarm == 0.0 else min(_MOST_WAKE_UPS, 1.5 / alarm) * seconds + 2
    )
    return snapshots[-1].wake_ups - snapshots[0].wake_ups > allowed


def _may_go_on(snapshots: Sequence[Member], repeating: bool) -> bool:
    """Return whether a process was stopped, waited for a disk, or was runnable most of the time.

    A process that restarts workers waits for each exec in the same state as for a disk: while
    ``repeating``, only a wait that spans two snapshots counts.
    """
    states = [snapshot.state for snapshot in snapshots]
    lasting = any(
        a.state == b.state == "D" and a.wake_ups == b.wake_ups
        for a, b in itertools.pairwise(snapshots)
    )
    waited = lasting if repeating else states.count("D") > 1
    return (
        any(state in "Tt" for state in states)
        or waited
        or states.count("R") > _RUNNABLE_SHARE * len(states)
    )


def _alarms(snapshots: Sequence[Snapshot]) -> Iterator[float]:
    """Yield, per process that waits with a timeout, its longest wait so far.

    One that never woke up may wait longer than it was watched.
    """
    for pid, now in snapshots[-1].members.items():
        if now.alarm < math.inf and not now.daemon:
            woke, longest, count = snapshots[-1].at, 0.0, now.wake_ups
            for snapshot in reversed(snapshots):
                then = snapshot.members.get(pid)
                if then is None:
                    break
                longest = max(longest, woke - snapshot.at)
                if then.wake_ups != count:
                    woke, count = snapshot.at, then.wake_ups
            yield longest
