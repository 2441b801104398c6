"""The rule for ending a wait early: when may a wait for an answer end before its deadline?

A child that ends, closes its channel or sends something that is no frame ends any wait at once
(``channel.py``, ``child_handle.py``): no answer can come any more. So does a child that exceeds a
limit, because its nanny kills it. While the child lives, a slow engine is waited for until the
deadline, with two exceptions. ``EarlyExitPolicy`` says which of them are enabled:

1. **The documented hang.** The case says that the test hangs, and its symptom is a text in the log.
The wait ends when that text was logged since
   the wait began, and the processes then stand still for 10 s (``stillness.SETTLE_S``; longer if
   they poll), or have repeated one step at least five times in at least 30 s
   (``stillness.detect_stillness`` decides that). It counts only while the wait's phase (start,
   ready, request, ...) is one of those that the symptom names. Stillness without the text never
   ends a wait.
2. **The death of the engine.** A process of the running engine has ended, and vLLM does not report
it: the wait ends 5 s (``_REPORT_S``) after
   that, or as soon as the remaining processes are quiet for 1.5 s (``_QUIET_S``). Only in the phase
   ``request``: before it, no engine's processes are known.

Which of them are enabled for a test (``EarlyExitPolicy.for_leg``):

| test | documented hang | death of the engine |
| --- | --- | --- |
| no case, or a case that documents no hang | no | yes |
| a case that documents a hang, with a text of the log | in the subject leg | no: silence after a
death may be that hang |
| a case that documents a hang otherwise (stacks, answer) | no | no, for the same reason |
| a control leg, a leg on a smaller engine (``--vllm-minimize``), a leg with an injected fault | no
| like the subject leg |
| any test under ``--vllm-full-deadlines`` | no | no |

The policy reaches a child as part of its ``Loan``: at its start, and again with every test that
borrows it. Whoever waits takes a ``WaitMonitor`` at the beginning of the wait
(``Child.monitor_wait``) and asks it at every pause (``Child.check_early``).
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from ...util.deadline import Clock, running_time
from .process_tree import EngineProcesses
from .sampling import LogFollower, ProcessSampler
from .stillness import (
    SETTLE_S,
    SNAPSHOT_INTERVAL_S,
    Snapshot,
    Thread,
    detect_stillness,
    is_quiet,
    may_continue_by_itself,
)

_KEPT_S = 180.0  # snapshots older than this are dropped
_IDLE_PACE_S = 1.0  # without a policy: another thread may have read that the child has ended
_QUIET_S = 1.5
_REPORT_S = 5.0  # an engine core may spin this long for a worker that has died, and report it then


@dataclasses.dataclass(frozen=True)
class DocumentedHang:
    """The text that identifies a hang (a regular expression, MULTILINE), the phases in which it
    counts, and the settling time in seconds."""

    pattern: str
    phases: tuple[str, ...]
    settle_s: float = SETTLE_S


@dataclasses.dataclass(frozen=True)
class EarlyExitPolicy:
    """What may end a wait before its deadline: the documented hang (None: there is none), and the
    death of an engine process."""

    hang: DocumentedHang | None = None
    deaths: bool = True

    @classmethod
    def for_leg(
        cls,
        *,
        full_deadlines: bool = False,
        documents_hang: bool = False,
        hang: DocumentedHang | None = None,
        subject: bool = True,
    ) -> EarlyExitPolicy:
        """Return the policy of one leg of a test, by the table above.

        ``documents_hang``: its case documents a hang, which ``hang`` identifies by a text of the
        log (None: by something else).
        ``subject``: the leg that the verdict is about.
        """
        if full_deadlines:
            return NO_EARLY_EXIT
        if not documents_hang:
            return cls()
        return cls(hang if subject else None, deaths=False)


NO_EARLY_EXIT = EarlyExitPolicy(deaths=False)
"""Wait for every deadline."""


@dataclasses.dataclass(frozen=True)
class WatchedTree:
    """Where a child can be observed: the processes below ``nanny``, its log, Ray's logs.

    ``responder``: the process that must send the answer.
    """

    nanny: int
    responder: int
    log: Path
    ray_dir: Path | None


class WaitMonitor:
    """Watches one wait. Ask it every ``pace`` seconds; without detectors it never ends a wait."""

    def __init__(
        self, hang: HangDetector | None = None, deaths: DeathDetector | None = None
    ) -> None:
        self._hang, self._deaths = hang, deaths
        self.pace = SNAPSHOT_INTERVAL_S if hang or deaths else _IDLE_PACE_S

    @classmethod
    def start(
        cls, tree: WatchedTree, phase: str, policy: EarlyExitPolicy, engine: EngineProcesses
    ) -> WaitMonitor:
        """Return the monitor of a wait in ``phase`` that begins now."""
        hang = (
            HangDetector(policy.hang, tree) if policy.hang and phase in policy.hang.phases else None
        )
        deaths = (
            DeathDetector(tree, engine)
            if policy.deaths and phase == "request" and engine.adopted
            else None
        )
        return cls(hang, deaths)

    def hang(self) -> str:
        """Return a description of the documented hang once it has happened, else an empty string."""
        return self._hang.check() if self._hang else ""

    def death(self) -> str:
        """Return a description of the engine's death once it has happened, else an empty string."""
        return self._deaths.check() if self._deaths else ""


class HangDetector:
    """Detects a documented hang: takes a snapshot whenever it is asked, at most every
    ``SNAPSHOT_INTERVAL_S``."""

    def __init__(
        self, hang: DocumentedHang, tree: WatchedTree, clock: Clock = running_time
    ) -> None:
        self._clock, self._settle_s = clock, hang.settle_s
        self._sampler = ProcessSampler(tree.nanny, tree.responder)
        self._logs = LogFollower(tree.log, tree.ray_dir, hang.pattern)
        self._snapshots: list[Snapshot] = []
        self._due = -math.inf
        self._threads: dict[int, Thread] = {}

    def check(self) -> str:
        """Return why the wait is over, or an empty string."""
        now = self._clock()
        if now < self._due:
            return ""
        self._due = now + SNAPSHOT_INTERVAL_S
        self._logs.read()
        if not self._logs.matches:  # stillness alone proves nothing
            return ""
        self._snapshots.append(self._sampler.snapshot(now, self._logs))
        if now - self._snapshots[0].at > _KEPT_S:
            del self._snapshots[0]
        stillness = detect_stillness(self._snapshots, self._settle_s)
        # Threads are read only when the main threads stand still, and twice: one that works or
        # sleeps may wake the others.
        before, self._threads = self._threads, self._sampler.threads() if stillness else {}
        if stillness is None or not before:
            return ""
        if not stillness.repeats and may_continue_by_itself(before, self._threads):
            return ""
        return f"{stillness} after {self._logs.excerpt!r}"


class DeathDetector:
    """Detects that an engine process has ended, and gives vLLM a few seconds to report it: while
    the other processes move."""

    def __init__(
        self, tree: WatchedTree, engine: EngineProcesses, clock: Clock = running_time
    ) -> None:
        self._engine, self._clock = engine, clock
        self._sampler = ProcessSampler(tree.nanny, tree.responder, orphans=False)
        self._logs = LogFollower(tree.log, tree.ray_dir)
        self._snapshots: list[Snapshot] = []

    def check(self) -> str:
        """Return which processes have died and how, once no report is to be expected; else an empty
        string."""
        dead = self._engine.lost()
        if not dead:
            return ""
        now = self._clock()
        self._logs.read()
        self._snapshots.append(self._sampler.snapshot(now, self._logs))
        passed = now - self._snapshots[0].at
        if passed < _REPORT_S and not is_quiet(self._snapshots, _QUIET_S):
            return ""
        return f"its engine process {' and '.join(dead)}, and the other processes did not report it within {passed:.1f} s"
