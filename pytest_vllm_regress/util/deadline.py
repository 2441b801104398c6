"""Deadlines of phases, on a clock that tests can replace."""

from __future__ import annotations

import dataclasses
import math
import select
import time
from collections.abc import Callable
from typing import Protocol

Clock = Callable[[], float]


class HasDescriptor(Protocol):
    """An object with a file descriptor, such as a socket or a pipe."""

    def fileno(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class Deadline:
    """The time ``at`` (on ``clock``) by which a phase must end, and the seconds that it was allowed."""

    phase: str
    allowed_s: float
    at: float
    clock: Clock = time.monotonic

    @classmethod
    def after(cls, phase: str, seconds: float, clock: Clock = time.monotonic) -> Deadline:
        return cls(phase, seconds, clock() + seconds, clock)

    @property
    def left_s(self) -> float:
        """Seconds left; 0 after the deadline."""
        return max(0.0, self.at - self.clock())

    @property
    def passed(self) -> bool:
        return self.left_s == 0.0


DeadlineFor = Callable[[str, float | None], Deadline]
"""Return the deadline of a phase. Seconds, if given, replace the phase's default."""


def wait_readable(deadline: Deadline, *sources: HasDescriptor, at_most_s: float = math.inf) -> bool:
    """Wait until one of ``sources`` is readable. Return False if the deadline or ``at_most_s`` passes first.

    A source that another thread has closed counts as readable.
    """
    poll = select.poll()
    for source in sources:
        if (descriptor := source.fileno()) < 0:
            return not deadline.passed
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(min(deadline.left_s, at_most_s) * 1000)) and not deadline.passed
