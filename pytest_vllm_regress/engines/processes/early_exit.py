"""The rule for ending a wait early: when may a wait for an answer end before its deadline?

A child that ends, closes its channel or sends something that is no frame ends any wait at once
(``Wait.until``): no answer can come any more. So does a child that exceeds a
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
borrows it. All waits for a process are in ``Wait.until``; ``Child.wait`` begins one.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ...target_site.vllm_regress_target.nanny import descendants, stat_fields
from ...util.deadline import Clock, Deadline, HasDescriptor, running_time, wait_readable
from .child_processes import GRACE_S, EngineProcesses
from .failures import ChildFailures
from .logs import LogFollower
from .stillness import (
    SETTLE_S,
    SNAPSHOT_INTERVAL_S,
    Member,
    Snapshot,
    Thread,
    detect_stillness,
    is_quiet,
    may_continue_by_itself,
)
from .waits import alarm_of, descriptors, sleeps

T = TypeVar("T")
_CENSUS_S = 2.0  # seconds between two searches for descendants, which read /proc for every process of the machine
_TICK = os.sysconf("SC_CLK_TCK")
_DAEMON = re.compile(
    rb"/ray/(?:core/src/ray/|dashboard/|autoscaler/|_private/(?:log_monitor|runtime_env/agent|process_watcher))"
)
_WOKEN = b"voluntary_ctxt_switches:"
_KEPT_S = 180.0  # snapshots older than this are dropped
_IDLE_PACE_S = 1.0  # without a policy: another thread may have read that the child has ended
_QUIET_S = 1.5
_REPORT_S = 5.0  # an engine core may spin this long for a worker that has died, and report it then


@dataclass(frozen=True)
class DocumentedHang:
    """The text that identifies a hang (a regular expression, MULTILINE), the phases in which it
    counts, and the settling time in seconds."""

    pattern: str
    phases: tuple[str, ...]
    settle_s: float = SETTLE_S


@dataclass(frozen=True)
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

    def begin(
        self,
        deadline: Deadline,
        tree: WatchedTree,
        engine: EngineProcesses,
        peer: ChildFailures,
        life: HasDescriptor,
    ) -> Wait:
        """Return a wait that begins now, with the detectors of its phase."""
        hang = (
            HangDetector(self.hang, tree)
            if self.hang and deadline.phase in self.hang.phases
            else None
        )
        watches = self.deaths and deadline.phase == "request" and engine.adopted
        deaths = DeathDetector(tree, engine) if watches else None
        return Wait(deadline, peer, life, hang=hang, deaths=deaths)


NO_EARLY_EXIT = EarlyExitPolicy(deaths=False)
"""Wait for every deadline."""


@dataclass(frozen=True)
class WatchedTree:
    """Where a child can be observed: the processes below ``nanny``, its log, Ray's logs.

    ``responder``: the process that must send the answer.
    """

    nanny: int
    responder: int
    log: Path
    ray_dir: Path | None


class Wait:
    """A wait for a process until ``deadline``. While the process lives, only a detector ends it
    earlier; without detectors nothing does.

    ``peer`` makes the errors to raise, after it has recorded and ended what is needed. ``life``:
    descriptors that become readable when the life of the process changes.
    """

    def __init__(
        self,
        deadline: Deadline,
        peer: ChildFailures,
        *life: HasDescriptor,
        hang: HangDetector | None = None,
        deaths: DeathDetector | None = None,
    ) -> None:
        self.deadline, self.peer = deadline, peer
        self._life, self._hang, self._deaths = life, hang, deaths
        self.pace_s = SNAPSHOT_INTERVAL_S if hang or deaths else _IDLE_PACE_S

    def until(
        self,
        result: Callable[[], T | None],
        *answers: HasDescriptor,
        ended: str = "",
        at_most_s: float = math.inf,
    ) -> T | None:
        """Return the first ``result()`` that is true, or None at the deadline.

        It is called again when one of ``answers`` is readable, and at least every ``at_most_s``
        seconds. ``ended``: what the error says if the process ends first; empty if that is no
        error.
        """
        while True:
            # Both are read before the result: what was sent before the end of the process or the
            # deadline still counts.
            alive, expired = self.peer.alive, self.deadline.passed
            if value := result():
                return value
            if ended and not alive:
                raise self.peer.died(self.deadline, ended)
            if expired:
                return None
            pace_s = min(at_most_s, self.pace_s)
            if not wait_readable(self.deadline, *answers, *self._life, at_most_s=pace_s):
                self._check(*answers)

    def for_answer(self, call: HasDescriptor) -> bool:
        """Wait until ``call``, a request to the process over HTTP and not over its channel, is
        readable. Return False if the deadline came first.

        Raises like ``Child.request``.
        """

        def has_arrived() -> bool:
            grace_s = 0.0 if self.peer.alive else GRACE_S
            return wait_readable(self.deadline, call, at_most_s=grace_s)

        return bool(self.until(has_arrived, call, ended="it ended without sending an answer"))

    def _check(self, *answers: HasDescriptor) -> None:
        """Raise ahead of the deadline when the wait is pointless, unless one of ``answers`` is
        readable: the documented hang has happened, or the engine is dead."""
        hang = self._hang.check() if self._hang else ""
        death = self._deaths.check() if self._deaths else ""
        if not (hang or death) or wait_readable(
            self.deadline, *answers, *self._life, at_most_s=0.0
        ):
            return
        if death:
            raise self.peer.engine_died(self.deadline, death)
        why = f"{hang}; the wait ended before its deadline of {self.deadline.allowed_s:g} s"
        raise self.peer.hung(self.deadline, why)


class HangDetector:
    """Detects a documented hang: takes a snapshot whenever it is asked, at most every
    ``SNAPSHOT_INTERVAL_S``."""

    def __init__(
        self, hang: DocumentedHang, tree: WatchedTree, clock: Clock = running_time
    ) -> None:
        self._clock, self._settle_s = clock, hang.settle_s
        self._sampler = ProcessSampler(tree, hang.pattern)
        self._snapshots: list[Snapshot] = []
        self._due = -math.inf
        self._threads: dict[int, Thread] = {}

    def check(self) -> str:
        """Return why the wait is over, or an empty string."""
        now = self._clock()
        if now < self._due:
            return ""
        self._due = now + SNAPSHOT_INTERVAL_S
        self._sampler.logs.read()
        if not self._sampler.logs.matches:  # stillness alone proves nothing
            return ""
        self._snapshots.append(self._sampler.snapshot(now))
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
        return f"{stillness} after {self._sampler.logs.excerpt!r}"


class DeathDetector:
    """Detects that an engine process has ended, and gives vLLM a few seconds to report it: while
    the other processes move."""

    def __init__(
        self, tree: WatchedTree, engine: EngineProcesses, clock: Clock = running_time
    ) -> None:
        self._engine, self._clock = engine, clock
        self._sampler = ProcessSampler(tree, orphans=False)
        self._snapshots: list[Snapshot] = []

    def check(self) -> str:
        """Return which processes have died and how, once no report is to be expected; else an empty
        string."""
        dead = self._engine.lost()
        if not dead:
            return ""
        now = self._clock()
        self._sampler.logs.read()
        self._snapshots.append(self._sampler.snapshot(now))
        passed = now - self._snapshots[0].at
        if passed < _REPORT_S and not is_quiet(self._snapshots, _QUIET_S):
            return ""
        return f"its engine process {' and '.join(dead)}, and the other processes did not report it within {passed:.1f} s"


class ProcessSampler:
    """Takes snapshots of everything below the nanny of ``tree``, or, without ``orphans``, only of
    its responder and that one's descendants. ``logs``: what they log from now on."""

    def __init__(
        self, tree: WatchedTree, pattern: str | None = None, *, orphans: bool = True
    ) -> None:
        self.logs = LogFollower(tree.log, tree.ray_dir, pattern)
        self._nanny, self._responder, self._orphans = tree.nanny, tree.responder, orphans
        self._pids: Sequence[int] = ()
        self._daemons: dict[int, bool] = {}
        self._census_at = float("-inf")

    def snapshot(self, now: float) -> Snapshot:
        """Return the snapshot at time ``now``, with the state of the logs as last read."""
        if now - self._census_at >= _CENSUS_S or not all(map(_lives, self._pids)):
            self._census_at = now
            self._pids = (
                descendants(self._nanny)
                if self._orphans
                else [self._responder, *descendants(self._responder)]
            )
        members = {}
        reaped, logs = 0, self.logs
        for pid in (self._nanny, *self._pids):
            with suppress(OSError, ValueError, IndexError):
                fields = stat_fields(pid)
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
            # Every new attempt to connect gets another socket.
            connections=frozenset(
                target for target in descriptors(pid).values() if target.startswith("socket:")
            ),
        )

    def _is_daemon(self, pid: int) -> bool:
        if pid not in self._daemons:
            self._daemons[pid] = bool(_DAEMON.search(Path(f"/proc/{pid}/cmdline").read_bytes()))
        return self._daemons[pid]

    def threads(self) -> dict[int, Thread]:
        """Return the threads of all processes except Ray's daemons."""
        threads = {}
        for pid in self._pids:
            with suppress(OSError, ValueError, IndexError):
                for tid in (
                    () if self._is_daemon(pid) else map(int, os.listdir(f"/proc/{pid}/task"))
                ):
                    state = stat_fields(tid)[0].decode()
                    threads[tid] = Thread(state, _number(tid, "status", _WOKEN), sleeps(tid))
        return threads


def _lives(pid: int) -> bool:
    with suppress(OSError, IndexError):
        return stat_fields(pid)[0] not in (b"Z", b"X")
    return False


def _number(task: int, file: str, name: bytes) -> int:
    """Return the number after ``name`` at the start of a line."""
    with open(f"/proc/{task}/{file}", "rb") as opened:
        _, _, value = (b"\n" + opened.read()).partition(b"\n" + name)
    return int(value.split(None, 1)[0])
