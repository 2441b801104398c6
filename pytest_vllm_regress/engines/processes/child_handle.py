"""A child process as the controller holds it: requests with deadlines, loans to tests, stop and
kill.

The work is done by its parts: ``channel`` sends requests, ``lifecycle`` knows and ends the
processes, ``failures`` makes the errors, ``early_exit`` says when a wait may end before its
deadline.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from ...errors import ChildDied, ChildError, DeadlineExceeded, Parts, RemoteError
from ...target_site.vllm_regress_target.protocol import FrameSocket
from ...util.deadline import Deadline, HasDescriptor, wait_readable
from ...util.masking import Masked
from . import process_tree
from .channel import Channel, RemoteFailure
from .early_exit import NO_EARLY_EXIT, EarlyExitPolicy, WaitMonitor, WatchedTree
from .failures import ChildFacts, ChildFailures
from .lifecycle import GRACE_S, Leftover, Lifecycle
from .log_window import LogWindow
from .process_tree import EngineProcesses

Interceptor = Callable[["Child", str, Deadline, dict[str, Any]], Any]
"""Takes a request in place of the target: child, operation, deadline, arguments.

It may ask the target itself (``Child.ask``).
"""
_LOG = logging.getLogger("vllm_regress.processes")


@dataclasses.dataclass(frozen=True)
class Loan:
    """The terms on which a child is lent: what may end its waits early, who intercepts its
    requests, and who is notified of each reply's phase."""

    early_exit: EarlyExitPolicy = NO_EARLY_EXIT
    interceptor: Interceptor | None = None
    on_reply: Callable[[str, object], None] | None = None


class Child:
    """One engine, server or probe process. Threads may share ``wait_for``, and nothing else.

    ``loan``: the terms that apply while nobody has borrowed it. ``start_method``: fork or spawn.
    ``end_expected``: a test asked for the end of the child or of one of its processes, or for
    whatever a signal does to them; what ends from then on is no failure by itself.
    """

    def __init__(
        self,
        facts: ChildFacts,
        nanny_pid: int,
        channel: FrameSocket,
        lifeline: FrameSocket,
        *,
        start_method: str = "fork",
        loan: Loan | None = None,
    ) -> None:
        self.name = facts.name
        self.log = facts.log
        self.start_method = start_method
        self.end_expected = False
        self.life = Lifecycle(nanny_pid, lifeline, [channel])
        self.engine_processes = EngineProcesses()
        self._facts = facts
        self._loans = [loan or Loan()]
        self._logs = LogWindow(facts.log, facts.ray_dir)
        self._failures = ChildFailures(facts, self.life, self._logs, self.engine_processes)
        self.channel = Channel(channel, self)

    @property
    def pid(self) -> int | None:
        """The child's process id; None until the nanny has reported it."""
        return self.life.pid

    @property
    def exit_status(self) -> int | None:
        """The child's exit status, negative for a signal; None while it runs."""
        return self.life.exit_status

    @property
    def alive(self) -> bool:
        """Whether the child process still runs. Without its nanny it counts as ended."""
        return self.life.alive

    @property
    def engine_is_dead(self) -> bool:
        """Whether the child, or one of its engine's processes, has ended although no test asked for
        it."""
        return not self.end_expected and (not self.alive or bool(self.engine_processes.lost()))

    @contextlib.contextmanager
    def lend(self, loan: Loan) -> Iterator[None]:
        """Apply ``loan`` to every request of the block.

        What was logged before, and which processes ended before, does not count in it.
        """
        self._loans.append(loan)
        self._logs.restart()
        if self.engine_processes.adopted:
            self.adopt_engine()
        try:
            yield
        finally:
            self._loans.remove(loan)

    def listen(self, on_reply: Callable[[str], None]) -> None:
        """Tell ``on_reply`` the phase of each reply while nobody has borrowed the child."""
        self._loans[0] = dataclasses.replace(
            self._loans[0], on_reply=lambda phase, reply: on_reply(phase)
        )

    @property
    def _loan(self) -> Loan:
        return self._loans[-1]

    def adopt_engine(self) -> None:
        """Record that the engine has started: from now on its processes must stay alive, and
        earlier log output does not count."""
        self._logs.restart()
        self.engine_processes.adopt(
            process for process in self.processes() if process.pid != self.pid
        )

    def request(self, operation: str, deadline: Deadline, /, **arguments: Any) -> Any:
        """Send one request and wait for its reply.

        Raises ``RemoteError`` (the target raised), ``ChildDied``, ``LimitExceeded`` (its processes
        were killed for it), ``ProtocolError``,
        ``DeadlineExceeded`` (with a dossier; the processes are ended first), ``Unsupported``, or
        ``UsageError`` (the target refused an argument). The child lives on after ``RemoteError``,
        ``Unsupported`` and ``UsageError`` only.
        """
        if self._loan.interceptor is not None:
            return self._loan.interceptor(self, operation, deadline, arguments)
        return self.ask(operation, deadline, **arguments)

    def ask(self, operation: str, deadline: Deadline, /, **arguments: Any) -> Any:
        """Like ``request``, but bypass the interceptor."""
        if self.life.ended:
            raise ChildDied(
                f"{self.name} has already ended ({self.life.describe_end()})", phase=deadline.phase
            )
        value = self.channel.request(
            {"op": operation, **arguments}, deadline, self.monitor_wait(deadline)
        )
        self.replied(deadline.phase, value)
        return value

    def replied(self, phase: str, reply: object = None) -> None:
        """Record that the target answered in ``phase``, and tell the borrower."""
        self._failures.note_reply(phase)
        if self._loan.on_reply is not None:
            self._loan.on_reply(phase, reply)

    def wait_ready(self, deadline: Deadline) -> None:
        """Wait until the child answers."""
        self.channel.receive(deadline, lambda frame: frame.get("event") == "ready")

    def wait_for(self, call: HasDescriptor, monitor: WaitMonitor, deadline: Deadline) -> bool:
        """Wait until ``call``, a request to the child over HTTP and not over the channel, is
        readable. Return False if the deadline came first.

        Raises like ``request``.
        ``monitor``: created before the call began, so that text logged in between counts.
        """
        while True:
            alive, expired = self.alive, deadline.passed
            if wait_readable(deadline, call, at_most_s=0.0 if alive else GRACE_S):
                return True
            if not alive:
                raise self.died(deadline, "it ended without sending an answer")
            if expired:
                return False
            if not wait_readable(deadline, call, self.life, at_most_s=monitor.pace):
                self._end_early(monitor, deadline, call)

    def monitor_wait(self, deadline: Deadline) -> WaitMonitor:
        """Return the monitor of a wait that begins now: what is logged from now on may be the text
        of the documented hang."""
        if self._loan.early_exit == NO_EARLY_EXIT:
            return WaitMonitor()
        self.life.wait_for_pid(deadline)
        if not self.alive or self.pid is None:
            return WaitMonitor()
        tree = WatchedTree(self.life.nanny_pid, self.pid, self.log, self._facts.ray_dir)
        return WaitMonitor.start(tree, deadline.phase, self._loan.early_exit, self.engine_processes)

    def check_early(self, monitor: WaitMonitor, deadline: Deadline) -> None:
        """Raise ahead of the deadline when the wait is pointless: the documented hang has happened,
        or the engine is dead."""
        self._end_early(monitor, deadline, self.channel)

    def _end_early(self, monitor: WaitMonitor, deadline: Deadline, answer: HasDescriptor) -> None:
        hang, death = monitor.hang(), monitor.death()
        if not (hang or death) or wait_readable(deadline, answer, self.life, at_most_s=0.0):
            return
        if death:
            raise self._failures.engine_died(deadline, death)
        raise self.hung(
            deadline, f"{hang}; the wait ended before its deadline of {deadline.allowed_s:g} s"
        )

    def check_alive(self, deadline: Deadline) -> None:
        """Raise ``ChildDied`` when the child has ended."""
        if not self.alive:
            raise self.died(deadline, "it ended")

    def pause(self, seconds: float) -> None:
        """Sleep, but no longer than the child lives."""
        wait_readable(Deadline.after("pause", seconds), self.life)

    def processes(self) -> list[psutil.Process]:
        """Return the child and everything below its nanny."""
        return self.life.processes()

    def expect_end(self) -> None:
        """Record that a test asked for the end of a process, which is then not a failure."""
        self.end_expected = True
        self.engine_processes.forget()

    def wait_for_exit(self, deadline: Deadline, *, all_processes: bool = False) -> int:
        """Wait until the child has ended by itself and return its exit status, negative for a
        signal.

        ``all_processes``: until the other processes have ended, too, except Python's and Ray's
        helpers. Raises ``DeadlineExceeded`` (with a dossier; the processes are ended first), and
        ``ChildDied`` if the exit status is unknown.
        """
        monitor = self.monitor_wait(deadline)
        self._wait_for_end(deadline, monitor, f"still alive after {deadline.allowed_s:g} s")
        if self.exit_status is None:
            raise self.died(deadline, "it ended, but its exit status is unknown")
        if all_processes:
            self._wait_for_others(deadline, monitor)
        self.replied(deadline.phase)
        return self.exit_status

    def stop(self, deadline: Deadline, *, by_signal: bool = False) -> tuple[Leftover, ...]:
        """Ask the child to shut down, wait until it has ended, then end and return whatever it
        left.

        One whose end a test has asked for may be stopped or dying: its processes are ended at once,
        and nothing counts as left behind.
        """
        if self.end_expected:
            self.kill()
            return ()
        if self.life.ended:
            return self.life.leftovers
        if self.channel.interrupted:  # it is still at work and would not read the request to stop
            self.kill()
            return self.life.leftovers
        _LOG.debug("stopping %s, deadline %g s", self.name, deadline.allowed_s)
        self._logs.restart()
        self.life.note_shared_memory()
        monitor = self.monitor_wait(deadline)
        unstopped = f"still alive {deadline.allowed_s:g} s after it was asked to stop"
        try:
            if by_signal:
                self.life.terminate()
                self._wait_for_end(deadline, monitor, unstopped)
            elif not self.alive or self.channel.request_stop(deadline, monitor):
                self._wait_for_end(deadline, monitor, unstopped)
        finally:
            self.kill()
        return self.life.leftovers

    def _wait_for_end(self, deadline: Deadline, monitor: WaitMonitor, late: str) -> None:
        while True:
            expired = deadline.passed
            if not self.alive:
                return
            if expired:
                raise self.hung(deadline, late)
            # Not the channel: once the child is gone, that is always readable.
            if not wait_readable(deadline, self.life, at_most_s=monitor.pace):
                self._end_early(monitor, deadline, self.life)

    def _wait_for_others(self, deadline: Deadline, monitor: WaitMonitor) -> None:
        while True:
            expired = deadline.passed
            others = [
                process for process in self.processes() if not process_tree.is_helper(process)
            ]
            if not others:
                return
            if expired:
                still = ", ".join(map(process_tree.describe, others))
                raise self.hung(
                    deadline,
                    f"it has ended, but after {deadline.allowed_s:g} s these still run: {still}",
                )
            process_tree.wait_until_gone(others, min(deadline.left_s, monitor.pace))

    def kill(self, grace_s: float = GRACE_S) -> None:
        """End all processes of the child now, ``grace_s`` seconds after TERM. Idempotent."""
        self.life.kill(grace_s)

    def failure(
        self,
        message: str,
        *,
        phase: str,
        type_name: str = "",
        detail: str = "",
        died: bool = False,
        **parts: Masked,
    ) -> RemoteError:
        """Return the error for a failure that the target reported; ``parts`` by name."""
        return self._failures.error(
            message, phase=phase, type_name=type_name, detail=detail, died=died, **parts
        )

    def parts(self) -> Parts:
        """Return what the engine's processes logged during the loan, and which of them are gone."""
        return self._failures.parts()

    def dossier(self, title: str) -> str:
        """Return stacks, logs and resources of the child's processes."""
        return self._failures.dossier(title)

    def logged(self) -> Masked:
        """Return what the processes have logged during the loan: of each log at most the first and
        last two megabytes."""
        return self._logs.text(max_chars=None)

    def log_tail(self) -> str:
        """Return the end of the log under a heading; empty when nothing was logged."""
        return self._failures.log_tail()

    # The methods of ``Peer``, which the channel calls.

    def life_signals(self) -> tuple[HasDescriptor, ...]:
        return (self.life,)

    def failed(self, failure: RemoteFailure, deadline: Deadline) -> Exception:
        return failure.refusal() or self._failures.remote(failure, deadline)

    def died(self, deadline: Deadline, why: str) -> Exception:
        return self._failures.died(deadline, why)

    def hung(self, deadline: Deadline, why: str, **parts: Masked) -> DeadlineExceeded:
        """Take the dossier, end the processes, and return the error for a missing answer; ``parts``
        by name."""
        return self._failures.hung(deadline, why, **parts)

    def garbled(self, deadline: Deadline, why: Masked) -> ChildError:
        return self._failures.garbled(deadline, why)
