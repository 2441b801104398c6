"""The processes of one child: its nanny and lifeline, everything below them, how they end, and what
they leave behind."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from ...target_site.vllm_regress_target.nanny import shm_inodes
from ...target_site.vllm_regress_target.protocol import (
    FrameSocket,
    FrameTimeout,
    PeerClosed,
    ProtocolViolation,
)
from ...util.deadline import Deadline, running_time, wait_readable
from ...util.masking import Masked
from . import process_tree

GRACE_S = 1.0
"""Seconds between TERM and KILL."""
_LEAVE_S = 3.0
"""Seconds after the child's end at which a process that still runs counts as left behind.

Ray's daemons need about one second.
"""
_NANNY_S = 8.0
_LOG = logging.getLogger("vllm_regress.processes")


@dataclass(frozen=True)
class Leftover:
    """Something an engine left behind after its end, since removed: a process, a shared-memory
    segment, GPU memory or a Ray session."""

    what: str
    name: str

    def __str__(self) -> str:
        return f"{self.what} {self.name}"


def describe_leftovers(leftovers: Sequence[Leftover]) -> str:
    """Return one line per leftover."""
    return "\n".join(f"  {leftover}" for leftover in leftovers)


class ChildProcesses:
    """A child process and everything below its nanny. ``sockets`` are closed with the lifeline when
    the child is ended.

    ``limit``: the limit that the processes were ended for, in words, and ``limit_name``: which one
    (memory, processes or session). Both are empty while they keep to all limits.
    """

    def __init__(
        self, nanny_pid: int, lifeline: FrameSocket, sockets: Sequence[FrameSocket] = ()
    ) -> None:
        self.nanny_pid = nanny_pid
        self.pid: int | None = None
        self.exit_status: int | None = None
        self.limit = self.limit_name = ""
        self.ended = False
        self.orphaned = False
        self.leftovers: tuple[Leftover, ...] = ()
        self._lifeline = lifeline
        self._reading = threading.Lock()
        self._sockets = (*sockets, lifeline)
        # Both are kept from the beginning: a pid may belong to another process once the agent has
        # reaped the nanny.
        self._nanny = process_tree.find(nanny_pid)
        self._process: psutil.Process | None = None
        self._shared_memory: set[str] = set()
        self._foreign_inodes = shm_inodes()  # shared memory that was there before this child
        self._at_end: list[Callable[[], tuple[Leftover, ...]]] = []

    def fileno(self) -> int:
        """The lifeline's descriptor: readable when the nanny reports something."""
        return self._lifeline.fileno()

    @property
    def alive(self) -> bool:
        """Whether the child still runs, as far as its nanny reported.

        Without its nanny it counts as ended. Thread-safe.
        """
        try:
            with self._reading:
                self._read_lifeline()
        except (PeerClosed, ProtocolViolation):
            self.orphaned = True
        return not self.ended and self.exit_status is None and not self.orphaned

    def wait_for_pid(self, deadline: Deadline) -> None:
        """Wait until the nanny has reported the pid of the child, which takes milliseconds."""
        while self.alive and self.pid is None and wait_readable(deadline, self._lifeline):
            pass

    def wait_for_exit_report(self) -> None:
        """Wait at most ``GRACE_S`` for the nanny to report the end of the child, because the
        channel may close before that."""
        while self.alive and wait_readable(Deadline.after("settle", GRACE_S), self._lifeline):
            pass

    def describe_end(self) -> str:
        """Return how the child ended, in words."""
        if self.exit_status is None:
            return "its nanny was killed" if self.orphaned else "its end was not reported"
        return process_tree.describe_exit_code(self.exit_status)

    def processes(self) -> list[psutil.Process]:
        """Return the child and everything below its nanny, or below the child itself when the nanny
        is gone."""
        if self._process is None or not self.orphaned:
            return process_tree.below(self._nanny)
        own = [self._process] if process_tree.is_alive(self._process) else []
        return [*own, *process_tree.below(self._process)]

    def note_shared_memory(self) -> None:
        """Record which shared memory the processes have mapped.

        After they are killed, nothing else shows that it was theirs.
        """
        self._shared_memory |= process_tree.shared_memory(self.processes(), self._foreign_inodes)

    def at_end(self, release: Callable[[], tuple[Leftover, ...]]) -> None:
        """Call ``release`` after the processes have ended.

        It releases their other resources and returns those that it could not release.
        """
        self._at_end.append(release)

    def terminate(self) -> None:
        """Send TERM to the child process alone."""
        if self._process is not None:
            process_tree.send_signal([self._process], signal.SIGTERM)

    def kill(self, grace_s: float = GRACE_S) -> None:
        """End all processes now, ``grace_s`` seconds after TERM.

        What outlived the child is recorded in ``leftovers``. Idempotent.
        """
        if self.ended:
            return
        ended_by_itself = not self.alive and not self.orphaned
        self.ended = True
        _LOG.debug("ending the processes below nanny %d, grace %g s", self.nanny_pid, grace_s)
        leftovers = self._end_processes(ended_by_itself, grace_s)
        segments = [path for path in sorted(self._shared_memory) if Path(path).exists()]
        self._end_nanny()  # it removes the shared memory that it has recorded
        leftovers += self._remove_shared_memory(segments, report=ended_by_itself)
        for socket in self._sockets:
            socket.close()
        for release in self._at_end:
            leftovers += release()
        self.leftovers = tuple(leftovers)

    def _end_processes(self, ended_by_itself: bool, grace_s: float) -> list[Leftover]:
        """End the processes.

        They are leftovers where the child had ended by itself; else only those that KILL did not
        end.
        """
        processes = self.processes()
        self._shared_memory |= process_tree.shared_memory(processes, self._foreign_inodes)
        leftovers: list[Leftover] = []
        if ended_by_itself:
            processes, grace_s = process_tree.wait_until_gone(processes, _LEAVE_S), 0.0
            leftovers += [
                Leftover("process", process_tree.describe(process)) for process in processes
            ]
        stubborn = process_tree.terminate(processes, grace_s=grace_s)
        return leftovers + [
            Leftover("process that KILL did not end", process_tree.describe(process))
            for process in stubborn
        ]

    def _end_nanny(self) -> None:
        nanny = [self._nanny] if self._nanny is not None else []
        process_tree.send_signal(nanny, signal.SIGCONT)  # somebody may have stopped it
        with suppress(PeerClosed, FrameTimeout):
            self._lifeline.send({"op": "end"}, timeout_s=1.0, clock=running_time)
        process_tree.terminate(process_tree.wait_until_gone(nanny, _NANNY_S), grace_s=0.0)

    def _remove_shared_memory(self, segments: list[str], *, report: bool) -> list[Leftover]:
        for path in segments:
            Path(path).unlink(missing_ok=True)
        return [Leftover("shared memory", path) for path in segments] if report else []

    def _read_lifeline(self) -> None:
        while not self.ended:
            frame = self._lifeline.pop()
            if frame is None:
                return
            if frame.get("event") == "started":
                self.pid = int(frame["pid"])
                self._process = self._find_child(self.pid)
            elif frame.get("event") == "exit":
                self.exit_status = int(frame["code"])
            elif frame.get("event") == "limit":
                self.limit, self.limit_name = str(frame["text"]), str(frame["limit"])

    def _find_child(self, pid: int) -> psutil.Process | None:
        """Return the process that the nanny reported, None if it has ended.

        A report may be read long after it was sent.
        """
        process = process_tree.find(pid)
        with suppress(psutil.Error):
            if process is not None and self._nanny is not None and self._nanny.is_running():
                return process if process.ppid() == self.nanny_pid else None
        return process


class EngineProcesses:
    """The processes of an engine that has started, and which of them have ended since.

    Before ``adopt`` there are none.
    """

    def __init__(self) -> None:
        self._descriptions: dict[psutil.Process, str] | None = None
        self._lost: dict[psutil.Process, Masked] = {}

    @property
    def adopted(self) -> bool:
        """Whether an engine has started."""
        return self._descriptions is not None

    def adopt(self, processes: Iterable[psutil.Process]) -> None:
        """Record the processes of an engine that has started, without helpers."""
        self._lost = {}
        self._descriptions = {
            process: process_tree.describe(process)
            for process in processes
            if not process_tree.is_helper(process)
        }

    def forget(self) -> None:
        """Stop tracking the engine: from now on its processes may end."""
        self._descriptions, self._lost = None, {}

    def lost(self) -> tuple[Masked, ...]:
        """Return one description per process that has ended, and how it ended."""
        for process, description in (self._descriptions or {}).items():
            if process not in self._lost and not process_tree.is_alive(process):
                how = process_tree.describe_exit(process)
                words = description.removeprefix(str(process.pid))
                self._lost[process] = Masked(f"{process.pid} has ended{how and ': '}{how}{words}")
        return tuple(self._lost.values())
