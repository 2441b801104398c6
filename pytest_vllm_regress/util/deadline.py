"""Deadlines of phases, on a clock that tests can replace.

The default clock, ``running_time``, stands still while this process does not run: while it is
stopped or swapped out. A deadline therefore limits the time in which an answer could have been
read. The clock needs no thread. Everything that waits reads it at least every ``MAX_SLEEP_S``, so a
much longer gap between two reads, in which this process used no CPU time either, is time in which
it did not run. A wait that blocks longer between two
reads would extend its deadline: wait with ``wait_readable``, or in short sleeps. (While the machine
sleeps, ``time.monotonic`` stands still, too.)

A wait reads the clock before its last check, so that data that arrived by then counts even if the
check runs late.
"""

from __future__ import annotations

import dataclasses
import math
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Protocol

from ..errors import UsageError

Clock = Callable[[], float]
MAX_SLEEP_S = 1.0
_MAX_GAP_S = 2 * MAX_SLEEP_S


class RunningTime:
    """A clock of the seconds in which this process ran. Thread-safe.

    ``monotonic`` and ``cpu_time`` are the clocks that it is made from.
    """

    def __init__(
        self, monotonic: Clock = time.monotonic, cpu_time: Clock = time.process_time
    ) -> None:
        self._monotonic, self._cpu_time = monotonic, cpu_time
        self._read_at, self._cpu_at = monotonic(), cpu_time()
        self._not_run_s = 0.0
        self._unlock()
        os.register_at_fork(
            after_in_child=self._unlock
        )  # another thread may have been reading the clock

    def _unlock(self) -> None:
        self._lock = threading.RLock()  # a handler of a signal may read it, too

    def __call__(self) -> float:
        with self._lock:
            now, cpu = self._monotonic(), self._cpu_time()
            ran_s = max(cpu - self._cpu_at, _MAX_GAP_S)
            self._not_run_s += max(0.0, now - self._read_at - ran_s)
            self._read_at, self._cpu_at = now, cpu
            return now - self._not_run_s


running_time = RunningTime()


def _elapsed() -> float:
    """Return the time of a clock that goes on while this process is stopped and while the machine
    sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class HasDescriptor(Protocol):
    """An object with a file descriptor, such as a socket or a pipe."""

    def fileno(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class Deadline:
    """The time ``at`` (on ``clock``) by which a phase must end, and the seconds that it was
    allowed. ``begun``: on the clock of ``_elapsed``."""

    phase: str
    allowed_s: float
    at: float
    clock: Clock = running_time
    begun: float = dataclasses.field(default_factory=_elapsed)

    @classmethod
    def after(cls, phase: str, seconds: float, clock: Clock = running_time) -> Deadline:
        return cls(phase, seconds, clock() + seconds, clock)

    @property
    def left_s(self) -> float:
        """Seconds left; 0 after the deadline."""
        return max(0.0, self.at - self.clock())

    @property
    def passed(self) -> bool:
        return self.left_s == 0.0

    @property
    def not_run_s(self) -> float:
        """Seconds since the beginning in which this process did not run, also because the machine
        slept. They do not count."""
        counted_s = self.clock() - (self.at - self.allowed_s)
        return max(0.0, _elapsed() - self.begun - counted_s)


DeadlineFor = Callable[[str, float | None], Deadline]
"""Return the deadline of a phase. Seconds, if given, replace the phase's default.

Raises ``UsageError`` for what ``check_seconds`` refuses.
"""


def check_seconds(seconds: float | None) -> None:
    """Raise ``UsageError`` unless ``seconds`` is None or a number of at least 0.

    A negative timeout would look like a hang of vLLM.
    """
    if seconds is not None and not (isinstance(seconds, (int, float)) and seconds >= 0):
        raise UsageError(f"timeout={seconds!r} is not a number of seconds of at least 0")


def wait_readable(deadline: Deadline, *sources: HasDescriptor, at_most_s: float = math.inf) -> bool:
    """Wait until one of ``sources`` is readable. Return False if the deadline or ``at_most_s``
    passes first; what is readable by then counts.

    A source that another thread has closed counts as readable.
    """
    poll = select.poll()
    for source in sources:
        if (descriptor := source.fileno()) < 0:
            return True
        poll.register(descriptor, select.POLLIN)
    until = min(deadline.at, deadline.clock() + at_most_s)
    while True:
        left_s = until - deadline.clock()
        if poll.poll(max(0.0, min(left_s, MAX_SLEEP_S)) * 1000):
            return True
        if left_s <= 0:
            return False
