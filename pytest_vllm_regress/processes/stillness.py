"""Whether a family of processes stands still: decided from what was seen of it, by a function without clock, files or processes.

It is asked only where a case documents a hang with a text, and that text has been seen. Then a family is still when for a settling time
nothing came of it: the same processes, hardly any processor time, nothing read, written or logged, no new connection. Or when it repeats
one step: workers die and are started again, say the same each time, and everything else is still. What may go on by itself is never still:
a process that is stopped, that wants a processor and gets none, that waits for a disk, or that sleeps until an alarm it has set.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

SETTLE_S = 10.0
LOOK_S = 0.5
_MOST_CORES = 0.08  # without Ray's daemons
_DAEMON_CORES = 0.05  # one of Ray's daemons; idle ones use 0.01, and there may be fourteen, of two Rays
_MOST_BYTES = 1024.0  # a second, read and written by all together
_MOST_FAULTS = 1.0  # a second, that had to wait for a disk
_MOST_WAKE_UPS = 12.0  # a second, by alarms: an idle server looks ten times a second
_ROUNDS = 4  # an alarm that has rung so often, and nothing came of it, is a poll
_REPEATS = 5  # of the same step with the same words
_WANTS = 0.5  # seen running in more than this part of the looks: it works, or wants to


@dataclasses.dataclass(frozen=True)
class Awaited:
    """The text by which a hang is known (a regular expression, MULTILINE), the phases in which it counts, and the settling time in seconds."""

    pattern: str
    phases: tuple[str, ...]
    settle_s: float = SETTLE_S


@dataclasses.dataclass(frozen=True)
class Member:
    """One process at one look. ``cpu`` in seconds, ``bytes`` read and written, ``faults`` that waited for a disk.

    Of its main thread: ``state``, the kernel's letter; ``wake_ups``; ``alarm``, the seconds that it waits at most (infinity: for ever; 0: for
    a time that is not known). ``daemon``: one of Ray's own, which read and write whatever happens.
    """

    state: str
    cpu: float
    bytes: int = 0
    faults: int = 0
    wake_ups: int = 0
    alarm: float = math.inf
    daemon: bool = False
    connections: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Look:
    """A family at the moment ``at`` (seconds). ``owing``: the process that owes the answer. ``reaped``: processor seconds of members that have ended.

    Of its logs: ``logged`` bytes, ``novel`` lines unlike any before, ``heard``: looks at which the awaited text had come anew.
    """

    at: float
    members: Mapping[int, Member]
    owing: int
    reaped: float = 0.0
    logged: int = 0
    novel: int = 0
    heard: int = 0


@dataclasses.dataclass(frozen=True)
class Thread:
    """One thread at one look; ``sleeps``: until an alarm, and for nothing else."""

    state: str
    wake_ups: int
    sleeps: bool


@dataclasses.dataclass(frozen=True)
class Stillness:
    """``seconds`` for which nothing came of the family; ``repeats``: how often the step was seen that it repeats, 0 for none."""

    seconds: float
    repeats: int = 0

    def __str__(self) -> str:
        if self.repeats:
            return f"the same step again for {self.seconds:.0f} s"
        return f"still for {self.seconds:.0f} s"


def judge(looks: Sequence[Look], settle_s: float = SETTLE_S) -> Stillness | None:
    """Whether the family stands still, or repeats itself, at the last of ``looks`` (in the order of time). None: it may yet get on."""
    if not looks or not looks[-1].heard:
        return None
    need = max(settle_s, *(_ROUNDS * each for each in _alarms(looks)), 0.0)
    window = _last(looks, need)
    if window is not None and _same_processes(window) and not _moves(window):
        return Stillness(window[-1].at - window[0].at)
    window = _last(looks, max(3 * settle_s, need, _since_repeats(looks)))
    if window is not None and _come_and_go(window):
        repeats = window[-1].heard - window[0].heard
        if window[-1].novel == window[0].novel and not _moves(_lasting(window), repeating=True):
            return Stillness(window[-1].at - window[0].at, repeats)
    return None


def quiet(looks: Sequence[Look], seconds: float) -> bool:
    """Whether nothing came of the family for the last ``seconds``. It may yet get on: an alarm that it has set does not count."""
    window = _last(looks, seconds)
    return window is not None and _same_processes(window) and not _moves(window)


def held_up(before: Mapping[int, Thread], after: Mapping[int, Thread]) -> bool:
    """Whether a thread, here and a look ago, wanted a processor, waited for a disk, or slept: it may go on, and others may wait for it."""
    pairs = [(before[number], each) for number, each in after.items() if number in before]
    return any(
        a.state == b.state == "R"
        or (a.wake_ups == b.wake_ups and (a.state == b.state == "D" or (a.sleeps and b.sleeps)))
        for a, b in pairs
    )


def _since_repeats(looks: Sequence[Look]) -> float:
    """Seconds since the text was heard for the last but ``_REPEATS``; infinity when it was not heard so often."""
    enough = (look.at for look in reversed(looks) if look.heard <= looks[-1].heard - _REPEATS)
    return looks[-1].at - next(enough, -math.inf)


def _last(looks: Sequence[Look], seconds: float) -> Sequence[Look] | None:
    """The looks of the last ``seconds``, at least; None when it was not looked for so long, or with gaps in which much may have happened."""
    start = next((at for at in reversed(range(len(looks))) if looks[-1].at - looks[at].at >= seconds), None)
    if start is None:
        return None
    window = looks[start:]
    return window if len(window) > seconds / LOOK_S / 4 else None


def _same_processes(window: Sequence[Look]) -> bool:
    return all(look.members.keys() == window[0].members.keys() for look in window)


def _come_and_go(window: Sequence[Look]) -> bool:
    """Whether processes end and others begin. Short ones may do so between two looks every time: their processor time tells."""
    return not _same_processes(window) or window[-1].reaped > window[0].reaped


def _lasting(window: Sequence[Look]) -> Sequence[Look]:
    """The looks, of the processes alone that were there at all of them."""
    common = frozenset.intersection(*(frozenset(look.members) for look in window))
    return [
        dataclasses.replace(look, members={pid: each for pid, each in look.members.items() if pid in common})
        for look in window
    ]


def _moves(window: Sequence[Look], repeating: bool = False) -> bool:
    """Whether something came of the family, or may come of it without anybody's help.

    Workers that die and are started again (``repeating``) use time, write logs and wake up who waits for them;
    the kernel counts what they read as read by who has started them.
    """
    first, last = window[0], window[-1]
    seconds = last.at - first.at
    if not last.members or last.owing not in last.members:
        return True
    pairs = [(first.members[pid], each) for pid, each in last.members.items()]
    cpu = sum(b.cpu - a.cpu for a, b in pairs if not b.daemon) + (0.0 if repeating else last.reaped - first.reaped)
    busiest = max((b.cpu - a.cpu for a, b in pairs if b.daemon), default=0.0)
    wrote = sum(b.bytes - a.bytes for a, b in pairs if not b.daemon)
    faults = sum(b.faults - a.faults for a, b in pairs)
    return (
        cpu > _MOST_CORES * seconds
        or busiest > _DAEMON_CORES * seconds
        or (not repeating and wrote > _MOST_BYTES * seconds)
        or faults > _MOST_FAULTS * seconds
        or (not repeating and _is_woken([look.members[last.owing] for look in window], seconds))
        or (not repeating and last.logged != first.logged)
        or any(a.connections != b.connections for a, b in pairs if not b.daemon)
        or any(_may_go_on([look.members[pid] for look in window], repeating) for pid in last.members)
    )


def _is_woken(looks: Sequence[Member], seconds: float) -> bool:
    """Whether something wakes the process up: not the alarm that it sets again and again."""
    alarm = max(look.alarm for look in looks)
    allowed = _MOST_WAKE_UPS * seconds if alarm == 0.0 else min(_MOST_WAKE_UPS, 1.5 / alarm) * seconds + 2
    return looks[-1].wake_ups - looks[0].wake_ups > allowed


def _may_go_on(looks: Sequence[Member], repeating: bool) -> bool:
    """A process that was stopped, waited for a disk, or ran most of the time.

    Who starts workers again waits, in the same state as for a disk, for each one's exec: there only a wait counts that lasts from look to look.
    """
    states = [look.state for look in looks]
    lasting = any(a.state == b.state == "D" and a.wake_ups == b.wake_ups for a, b in itertools.pairwise(looks))
    waited = lasting if repeating else states.count("D") > 1
    return any(state in "Tt" for state in states) or waited or states.count("R") > _WANTS * len(states)


def _alarms(looks: Sequence[Look]) -> Iterator[float]:
    """For each process that waits for a time: the longest it did so. One that never woke up may sleep for longer than it was looked at."""
    for pid, now in looks[-1].members.items():
        if now.alarm < math.inf and not now.daemon:
            woke, longest, count = looks[-1].at, 0.0, now.wake_ups
            for look in reversed(looks):
                then = look.members.get(pid)
                if then is None:
                    break
                longest = max(longest, woke - look.at)
                if then.wake_ups != count:
                    woke, count = look.at, then.wake_ups
            yield longest
