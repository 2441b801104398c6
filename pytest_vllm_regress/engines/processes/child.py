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

from ...errors import ChildDied
from ...target_site.vllm_regress_target.protocol import FrameSocket
from ...util.deadline import Deadline, wait_readable
from . import process_tree
from .channel import Channel
from .child_processes import ChildProcesses, EngineProcesses, Leftover
from .early_exit import NO_EARLY_EXIT, EarlyExitPolicy, Wait, WatchedTree
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


class Child(ChildProcesses):
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
        super().__init__(nanny_pid, lifeline, [channel])
        self.name = facts.name
        self.log = facts.log
        self.start_method = start_method
        self.end_expected = False
        self.engine_processes = EngineProcesses()
        self.logs = LogWindow(facts.log, facts.ray_dir)
        self.failures = ChildFailures(facts, self, self.logs, self.engine_processes)
        self._channel = Channel(channel)
        self._ray_dir = facts.ray_dir
        self._loans = [loan or Loan()]

    @property
    def engine_is_dead(self) -> bool:
        """Whether the child, or one of its engine's processes, has ended although no test asked for
        it."""
        return not self.end_expected and (not self.alive or bool(self.engine_processes.lost()))

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
        if self.ended:
            raise ChildDied(
                f"{self.name} has already ended ({self.describe_end()})", phase=deadline.phase
            )
        frame = {"op": operation, **arguments}
        value = self._channel.request(frame, self.wait(deadline))
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
            self.wait_for_pid(deadline)
            if self.alive and self.pid is not None:
                tree = WatchedTree(self.nanny_pid, self.pid, self.log, self._ray_dir)
                return policy.begin(deadline, tree, self.engine_processes, self.failures, self)
        return Wait(deadline, self.failures, self)

    def wait_ready(self, deadline: Deadline) -> None:
        """Wait until the child answers."""
        self._channel.receive(
            Wait(deadline, self.failures, self), lambda frame: frame.get("event") == "ready"
        )

    def check_alive(self, deadline: Deadline) -> None:
        """Raise ``ChildDied`` when the child has ended."""
        if not self.alive:
            raise self.failures.died(deadline, "it ended")

    def pause(self, seconds: float) -> None:
        """Sleep, but no longer than the child lives."""
        wait_readable(Deadline.after("pause", seconds), self)

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
        self._wait_for_end(wait, f"still alive after {deadline.allowed_s:g} s")
        if self.exit_status is None:
            raise self.failures.died(deadline, "it ended, but its exit status is unknown")
        if all_processes:
            self._wait_for_others(wait)
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
        if self.ended:
            return self.leftovers
        if self._channel.interrupted:  # it is still at work and would not read the request to stop
            self.kill()
            return self.leftovers
        _LOG.debug("stopping %s, deadline %g s", self.name, deadline.allowed_s)
        self.logs.restart()
        self.note_shared_memory()
        wait = self.wait(deadline)
        unstopped = f"still alive {deadline.allowed_s:g} s after it was asked to stop"
        try:
            if by_signal:
                self.terminate()
                self._wait_for_end(wait, unstopped)
            elif not self.alive or self._channel.request_stop(wait):
                self._wait_for_end(wait, unstopped)
        finally:
            self.kill()
        return self.leftovers

    def _wait_for_end(self, wait: Wait, late: str) -> None:
        # Not for the channel: once the child is gone, that is always readable.
        if not wait.until(lambda: not self.alive):
            raise self.failures.hung(wait.deadline, late)

    def _wait_for_others(self, wait: Wait) -> None:
        """Wait until the other processes have ended, except helpers."""
        deadline = wait.deadline
        while True:
            expired = deadline.passed
            others = [p for p in self.processes() if not process_tree.is_helper(p)]
            if not others:
                return
            if expired:
                still = ", ".join(map(process_tree.describe, others))
                why = f"it has ended, but after {deadline.allowed_s:g} s these still run: {still}"
                raise self.failures.hung(deadline, why)
            process_tree.wait_until_gone(others, min(deadline.left_s, wait.pace_s))
