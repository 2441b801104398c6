"""Cells of the fault suite: a fault in a phase must end in time, leave nothing behind and not harm
what runs next."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from pytest_vllm_regress.engines.processes import process_tree
from pytest_vllm_regress.errors import ChildError, RegressError
from pytest_vllm_regress.util.rundir import RunDir
from tests.helpers import shared_memory

LATE_S = 3.0
"""Maximum time (seconds) that a fault may delay a test beyond its deadline on an idle machine;
checked when results are recorded."""
BUSY_LATE_S = 30.0
"""The same on any machine. Without the deadline it would be 600 s."""
GONE_S = 60.0
"""Time (seconds) after the end in which processes may still be terminating."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """Result of one fault in one phase.

    ``late_s``: seconds from the deadline to the end, 0 if it ended earlier.
    """

    where: str
    fault: str
    phase: str
    outcome: str
    late_s: float
    survivors: tuple[str, ...]
    next_one: str

    @property
    def passed(self) -> bool:
        return self.late_s <= BUSY_LATE_S and not self.survivors and self.next_one == "passes"


@dataclasses.dataclass
class CellRecorder:
    """Records what happens while a cell runs."""

    outcome: str = "no error"
    late_s: float = 0.0
    next_one: str = "not tried"
    ports: list[int] = dataclasses.field(default_factory=list)
    files: list[Path] = dataclasses.field(default_factory=list)

    def call(self, function: Callable[[], object], deadline_s: float) -> None:
        """Call the function that the fault affects, which has ``deadline_s`` seconds.

        Its error becomes the outcome.
        """
        began = time.monotonic()
        try:
            function()
        except RegressError as error:
            self.outcome = describe(error)
        self.late_s = max(self.late_s, time.monotonic() - began - deadline_s)

    def run_next(self, function: Callable[[], object]) -> None:
        """Call a function that the fault must not have harmed."""
        try:
            function()
            self.next_one = "passes"
        except RegressError as error:
            self.next_one = describe(error)


def describe(error: BaseException) -> str:
    """Return an error in one line: class, phase and the first line of the message."""
    phase = f"[{error.phase}] " if isinstance(error, ChildError) else ""
    return f"{type(error).__name__}: {phase}{str(error.args[0]).splitlines()[0]}".replace(
        str(Path.home()), "~"
    )[:160]


def _is_spared(process: psutil.Process, spared: frozenset[int]) -> bool:
    """Return whether a process, or what it is the nanny of, is spared."""
    with contextlib.suppress(psutil.Error):
        return not spared.isdisjoint({process.pid, *(child.pid for child in process.children())})
    return process.pid in spared


def survivors(
    run: RunDir,
    recorder: CellRecorder,
    *,
    spared: frozenset[int] = frozenset(),
    shared: frozenset[str] = frozenset(),
) -> tuple[str, ...]:
    """Return what is left of a run.

    That is: processes with its tag except ``spared``, shared memory except the earlier ``shared``,
    listening ports, and files that had to be removed.
    """
    living = [
        process for process in process_tree.with_tag(run.tag) if not _is_spared(process, spared)
    ]
    left = [
        f"process {process_tree.describe(process)}"
        for process in process_tree.wait_until_gone(living, GONE_S)
    ]
    left += [
        f"shared memory {path}"
        for path in {str(path) for path in run.segments()} | shared_memory.leaked_since(shared)
    ]
    left += [f"port {port}" for port in recorder.ports if _listens(port)]
    left += [f"file {path}" for path in recorder.files if path.exists()]
    return tuple(left)


@contextlib.contextmanager
def cell(
    cells: list[Cell],
    run: RunDir,
    where: str,
    fault: str,
    phase: str,
    *,
    spared: Callable[[], frozenset[int]] = frozenset,
) -> Iterator[CellRecorder]:
    """Run one cell: record what happens inside the block, and check it at the end."""
    recorder = CellRecorder()
    shared = shared_memory.unmapped_files()
    yield recorder
    left = survivors(run, recorder, spared=spared(), shared=shared)
    done = Cell(
        where,
        fault,
        phase,
        recorder.outcome,
        round(max(0.0, recorder.late_s), 1),
        left,
        recorder.next_one,
    )
    cells.append(done)
    assert done.passed, done


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
