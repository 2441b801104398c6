"""Deadlines: when a phase must have ended, by a clock that tests can replace."""

from __future__ import annotations

import dataclasses
import math
import select
import time
from collections.abc import Callable
from typing import Protocol

Clock = Callable[[], float]


class HasDescriptor(Protocol):
    """A socket, a pipe or the like."""

    def fileno(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class Deadline:
    """The moment (on ``clock``) by which a phase must have ended, and how long it was given in seconds."""

    phase: str
    allowed_s: float
    at: float
    clock: Clock = time.monotonic

    @classmethod
    def after(cls, phase: str, seconds: float, clock: Clock = time.monotonic) -> Deadline:
        return cls(phase, seconds, clock() + seconds, clock)

    @property
    def left_s(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.at - self.clock())

    @property
    def passed(self) -> bool:
        return self.left_s == 0.0


DeadlineFor = Callable[[str, float | None], Deadline]
"""Makes the deadline of a phase; seconds other than None replace what the phase is given."""


def wait_readable(deadline: Deadline, *ends: HasDescriptor, at_most_s: float = math.inf) -> bool:
    """Sleep until one of ``ends`` can be read; False when the deadline, or ``at_most_s``, came first.

    One that is closed, by another thread that has seen its end, counts as readable.
    """
    poll = select.poll()
    for end in ends:
        if (number := end.fileno()) < 0:
            return not deadline.passed
        poll.register(number, select.POLLIN)
    return bool(poll.poll(min(deadline.left_s, at_most_s) * 1000)) and not deadline.passed
