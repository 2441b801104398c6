"""What ends a wait before its deadline: the documented hang, and an engine's death that nobody tells. Everything else waits."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path

from .sampling import Eyes, Logs
from .stillness import LOOK_S, Awaited, Look, Thread, held_up, judge, quiet
from .witness import Witness

Clock = Callable[[], float]
_KEPT_S = 180.0
_GLANCE_S = 1.0  # where nothing is looked for: another thread may have read that the child has ended
_QUIET_S = 1.5  # nothing comes of those that are left: vLLM will not tell of the death itself
_TELL_S = 5.0  # in which it may, though it works: an engine core may spin for a worker that has died


@dataclasses.dataclass(frozen=True)
class Early:
    """What may end a wait before its deadline. ``hang``: the one that the case documents, if its text is one of the log; ``deaths``: those of
    the engine's processes. Not where a case documents a hang: silence after a death is what it may be about."""

    hang: Awaited | None = None
    deaths: bool = True


NEVER = Early(deaths=False)


@dataclasses.dataclass(frozen=True)
class Family:
    """Where a family can be seen: below ``nanny``, in its log, in Ray's. ``owing``: the process that owes the answer."""

    nanny: int
    owing: int
    log: Path
    ray_dir: Path | None


class Vigil:
    """One wait of a test: asked again and again, each ``pace`` seconds, whether it is over."""

    def __init__(self, hang: Watch | None = None, deaths: Deaths | None = None) -> None:
        self._hang, self._deaths = hang, deaths
        self.pace = LOOK_S if hang or deaths else _GLANCE_S

    @classmethod
    def over(cls, family: Family, phase: str, early: Early, witness: Witness) -> Vigil:
        """The vigil over a wait in ``phase`` that begins now."""
        hang = Watch(early.hang, family) if early.hang and phase in early.hang.phases else None
        deaths = Deaths(family, witness) if early.deaths and phase == "request" and witness.has_engine else None
        return cls(hang, deaths)

    def hang(self) -> str:
        """The documented hang, in words; else nothing."""
        return self._hang.look() if self._hang else ""

    def death(self) -> str:
        """The engine's death, in words; else nothing."""
        return self._deaths.look() if self._deaths else ""


class Watch:
    """Looks for a documented hang when asked, at most every ``LOOK_S``, and remembers."""

    def __init__(self, awaited: Awaited, family: Family, clock: Clock = time.monotonic) -> None:
        self._clock, self._settle_s = clock, awaited.settle_s
        self._eyes = Eyes(family.nanny, family.owing)
        self._logs = Logs(family.log, family.ray_dir, awaited.pattern)
        self._looks: list[Look] = []
        self._due = -math.inf
        self._threads: dict[int, Thread] = {}

    def look(self) -> str:
        """Look once, if it is time: why the wait is over, in words, or nothing."""
        now = self._clock()
        if now < self._due:
            return ""
        self._due = now + LOOK_S
        self._logs.read()
        if not self._logs.heard:  # nothing is known by stillness alone
            return ""
        self._looks.append(self._eyes.look(now, self._logs))
        if now - self._looks[0].at > _KEPT_S:
            del self._looks[0]
        found = judge(self._looks, self._settle_s)
        before, self._threads = self._threads, self._eyes.threads() if found else {}
        if found is None or not before or (not found.repeats and held_up(before, self._threads)):
            return ""
        return f"{found} after {self._logs.excerpt!r}"


class Deaths:
    """Notices that a process of the engine has ended, and lets vLLM say so first: while the others move, and not for long."""

    def __init__(self, family: Family, witness: Witness, clock: Clock = time.monotonic) -> None:
        self._witness, self._clock = witness, clock
        self._eyes = Eyes(family.nanny, family.owing, orphans=False)
        self._logs = Logs(family.log, family.ray_dir)
        self._looks: list[Look] = []

    def look(self) -> str:
        """Who has died and how, when nothing more is to be waited for; else nothing."""
        lost = self._witness.lost()
        if not lost:
            return ""
        now = self._clock()
        self._logs.read()
        self._looks.append(self._eyes.look(now, self._logs))
        passed = now - self._looks[0].at
        if passed < _TELL_S and not quiet(self._looks, _QUIET_S):
            return ""
        return f"its engine process {' and '.join(lost)}, and in {passed:.1f} s the rest of it has not said so"
