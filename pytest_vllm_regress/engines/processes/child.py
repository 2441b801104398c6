"""A child process as the controller holds it: requests with deadlines, loans to tests, stop and
kill.

``channel`` sends its requests, ``child_processes`` knows and ends its processes, ``failures`` makes
its errors, and ``early_exit`` says when a wait may end before its deadline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psutil

from ...errors import ChildDied
from ...target_site.vllm_regress_target.protocol import FrameSocket
from ...util.deadline import Deadline, HasDescriptor, wait_readable
from . import process_tree
from .channel import Channel
from .child_processes import GRACE_S, ChildProcesses, EngineProcesses, Leftover
from .early_exit import NO_EARLY_EXIT, EarlyExitPolicy, WaitMonitor, WatchedTree
from .failures import ChildFacts, ChildFailures
from .logs import LogWindow

Interceptor = Callable[["Child", str, Deadline, dict[str, Any]], Any]
"""Takes a request in place of the target: child, operation, deadline, arguments.

It may ask the target itself (``Child.ask``).
"""
_LOG = logging.getLogger("vllm_regress.processes")


@dataclass(frozen=True)
class Loan:
    """The terms on which a child is lent: what may end its waits early, who intercepts its
    requests, and who is notified of each reply's phase."""

    early_exit: EarlyExitPolicy = NO_EARLY_EXIT
    interceptor: Interceptor | None = None
    on_reply: Callable[[str, object], None] | None = None


class Child:
    """One engine, server or probe process. Threads may share ``Wait.for_answer``, and nothing else.

    ``loan``: the terms that apply while nobody has borrowed it. ``start_method``: fork or spawn.
    ``end_expected``: a test asked for the end of the child or of one of its processes, or for
    whatever a signal does to them; what ends from then on is no failure by itself. ``logs``: what
    its processes have logged during the loan. ``failures`` makes the errors to raise.
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
        self.tree = ChildProcesses(nanny_pid, lifeline, [channel])
        self.engine_processes = EngineProcesses()
        self.logs = LogWindow(facts.log, facts.ray_dir)
        self.failures = ChildFailures(facts, self.tree, self.logs, self.engine_processes)
        self._channel = Channel(channel, self.failures, self.tree)
        self._ray_dir = facts.ray_dir
        self._loans = [loan or Loan()]

    @property
    def pid(self) -> int | None:
        """The child's process id; None until the nanny has reported it."""
        return self.tree.pid

    @property
    def exit_status(self) -> int | None:
        """The child's exit status, negative for a signal; None while it runs."""
        return self.tree.exit_status

    @property
    def alive(self) -> bool:
        """Whether the child process still runs. Without its nanny it counts as ended."""
        return self.tree.alive

    @property
    def engine_is_dead(self) -> bool:
        """Whether the child, or one of its engine's processes, has ended although no test asked for
        it."""
        return not self.end_expected and (not self.alive or bool(self.engine_processes.lost()))

    def processes(self) -> list[psutil.Process]:
        """Return the child and everything below its nanny."""
        return self.tree.processes()

    # Loans: what was logged or ended before one does not count in it.

    @contextmanager
    def lend(self, loan: Loan) -> Iterator[None]:
        """Apply ``loan`` to every request of the block."""
        self._loans.append(loan)
        self.logs.restart()
        if self.engine_processes.adopted:
            self.adopt_engine()
        try:
            yield
        finally:
            self._loans.remove(loan)

    def listen(self, on_reply: Callable[[str], None]) -> None:
        """Tell ``on_reply`` the phase of each reply while nobody has borrowed the child."""
        self._loans[0] = replace(self._loans[0], on_reply=lambda phase, reply: on_reply(phase))

    def adopt_engine(self) -> None:
        """Record that the engine has started: from now on its processes must stay alive, and
        earlier log output does not count."""
        self.logs.restart()
        self.engine_processes.adopt(
            process for process in self.processes() if process.pid != self.pid
        )

    # Requests

    def request(self, operation: str, deadline: Deadline, /, **arguments: Any) -> Any:
        """Send one request and wait for its reply.

        Raises ``RemoteError`` (the target raised), ``ChildDied``, ``LimitExceeded`` (its processes
        were killed for it), ``ProtocolError``, ``DeadlineExceeded`` (with a dossier; the processes
        are ended first), ``Unsupported``, or ``UsageError`` (the target refused an argument). The
        child lives on after ``RemoteError``, ``Unsupported`` and ``UsageError`` only.
        """
        interceptor = self._loans[-1].interceptor
        if interceptor is not None:
            return interceptor(self, operation, deadline, arguments)
        return self.ask(operation, deadline, **arguments)

    def ask(self, operation: str, deadline: Deadline, /, **arguments: Any) -> Any:
        """Like ``request``, but bypass the interceptor."""
        if self.tree.ended:
            raise ChildDied(
                f"{self.name} has already ended ({self.tree.describe_end()})", phase=deadline.phase
            )
        frame = {"op": operation, **arguments}
        value = self._channel.request(frame, deadline, self.wait(deadline).monitor)
        self.replied(deadline.phase, value)
        return value

    def replied(self, phase: str, reply: object = None) -> None:
        """Record that the target answered in ``phase``, and tell the borrower."""
        self.failures.note_reply(phase)
        on_reply = self._loans[-1].on_reply
        if on_reply is not None:
            on_reply(phase, reply)

    # Waits

    def wait(self, deadline: Deadline) -> Wait:
        """Begin a wait: what is logged from now on may be the text of the documented hang."""
        policy = self._loans[-1].early_exit
        if policy != NO_EARLY_EXIT:
            self.tree.wait_for_pid(deadline)
            if self.alive and self.pid is not None:
                tree = WatchedTree(self.tree.nanny_pid, self.pid, self.log, self._ray_dir)
                monitor = WaitMonitor.start(
                    tree, deadline.phase, policy, self.engine_processes, self.failures
                )
                return Wait(self, deadline, monitor)
        return Wait(self, deadline, WaitMonitor())

    def wait_ready(self, deadline: Deadline) -> None:
        """Wait until the child answers."""
        self._channel.receive(deadline, lambda frame: frame.get("event") == "ready")

    def check_alive(self, deadline: Deadline) -> None:
        """Raise ``ChildDied`` when the child has ended."""
        if not self.alive:
            raise self.failures.died(deadline, "it ended")

    def pause(self, seconds: float) -> None:
        """Sleep, but no longer than the child lives."""
        wait_readable(Deadline.after("pause", seconds), self.tree)

    # The end

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
        wait = self.wait(deadline)
        wait.for_end(f"still alive after {deadline.allowed_s:g} s")
        if self.exit_status is None:
            raise self.failures.died(deadline, "it ended, but its exit status is unknown")
        if all_processes:
            wait.for_others()
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
        if self.tree.ended:
            return self.tree.leftovers
        if self._channel.interrupted:  # it is still at work and would not read the request to stop
            self.kill()
            return self.tree.leftovers
        _LOG.debug("stopping %s, deadline %g s", self.name, deadline.allowed_s)
        self.logs.restart()
        self.tree.note_shared_memory()
        wait = self.wait(deadline)
        unstopped = f"still alive {deadline.allowed_s:g} s after it was asked to stop"
        try:
            if by_signal:
                self.tree.terminate()
                wait.for_end(unstopped)
            elif not self.alive or self._channel.request_stop(deadline, wait.monitor):
                wait.for_end(unstopped)
        finally:
            self.kill()
        return self.tree.leftovers

    def kill(self) -> None:
        """End all processes of the child now. Idempotent."""
        self.tree.kill()


class Wait:
    """A wait for a child until ``deadline``. While the child lives, only ``monitor`` ends it
    earlier."""

    def __init__(self, child: Child, deadline: Deadline, monitor: WaitMonitor) -> None:
        self.deadline = deadline
        self.monitor = monitor
        self._child = child

    def check(self, answer: HasDescriptor | None = None) -> None:
        """Raise ahead of the deadline when the wait is pointless, unless ``answer`` is readable: the
        documented hang has happened, or the engine is dead."""
        tree = self._child.tree
        self.monitor.check(self.deadline, answer or tree, tree)

    def for_answer(self, call: HasDescriptor) -> bool:
        """Wait until ``call``, a request to the child over HTTP and not over the channel, is
        readable. Return False if the deadline came first.

        Raises like ``Child.request``.
        """
        while True:
            alive, expired = self._child.alive, self.deadline.passed
            if wait_readable(self.deadline, call, at_most_s=0.0 if alive else GRACE_S):
                return True
            if not alive:
                raise self._child.failures.died(self.deadline, "it ended without sending an answer")
            if expired:
                return False
            if not wait_readable(
                self.deadline, call, self._child.tree, at_most_s=self.monitor.pace
            ):
                self.check(call)

    def for_end(self, late: str) -> None:
        """Wait until the child has ended. ``late``: what an error says at the deadline."""
        while True:
            expired = self.deadline.passed
            if not self._child.alive:
                return
            if expired:
                raise self._child.failures.hung(self.deadline, late)
            # Not the channel: once the child is gone, that is always readable.
            if not wait_readable(self.deadline, self._child.tree, at_most_s=self.monitor.pace):
                self.check()

    def for_others(self) -> None:
        """Wait until the other processes have ended, except helpers."""
        while True:
            expired = self.deadline.passed
            others = [
                process
                for process in self._child.processes()
                if not process_tree.is_helper(process)
            ]
            if not others:
                return
            if expired:
                still = ", ".join(map(process_tree.describe, others))
                raise self._child.failures.hung(
                    self.deadline,
                    f"it has ended, but after {self.deadline.allowed_s:g} s these still run: {still}",
                )
            process_tree.wait_until_gone(others, min(self.deadline.left_s, self.monitor.pace))
