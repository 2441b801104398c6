"""What a cell of the fault suite is, and how it is checked: it ended in time, left nothing, and the next one is unharmed."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pytest_vllm_regress.errors import ChildError, RegressError
from pytest_vllm_regress.processes import family
from pytest_vllm_regress.util.rundir import RunDir
from tests.helpers import shared_memory

LATE_S = 3.0
"""How long after its deadline a fault may keep a test waiting."""
GONE_S = 10.0
"""How long after the end what is ending may still be seen."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One fault in one phase. ``late_s``: seconds from the deadline to the end, 0 when it ended before."""

    where: str
    fault: str
    phase: str
    outcome: str
    late_s: float
    survivors: tuple[str, ...]
    next_one: str

    @property
    def passed(self) -> bool:
        return self.late_s <= LATE_S and not self.survivors and self.next_one == "passes"


@dataclasses.dataclass
class Seen:
    """Filled while a cell runs."""

    outcome: str = "no error"
    late_s: float = 0.0
    next_one: str = "not tried"
    ports: list[int] = dataclasses.field(default_factory=list)
    files: list[Path] = dataclasses.field(default_factory=list)

    def call(self, what: Callable[[], object], deadline_s: float) -> None:
        """Run what the fault is to harm, under ``deadline_s``; its error is the outcome."""
        began = time.monotonic()
        try:
            what()
        except RegressError as error:
            self.outcome = describe(error)
        self.late_s = max(self.late_s, time.monotonic() - began - deadline_s)

    def following(self, what: Callable[[], object]) -> None:
        """Run what must be unharmed."""
        try:
            what()
            self.next_one = "passes"
        except RegressError as error:
            self.next_one = describe(error)


def describe(error: BaseException) -> str:
    """An error in one line: its class, its phase and its first words."""
    phase = f"[{error.phase}] " if isinstance(error, ChildError) else ""
    return f"{type(error).__name__}: {phase}{str(error.args[0]).splitlines()[0]}".replace(str(Path.home()), "~")[:160]


def survivors(
    run: RunDir, seen: Seen, *, spared: frozenset[int] = frozenset(), shared: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """What of a run is still there: processes with its tag (not the ``spared``), shared memory that is not among ``shared`` of before,
    listening ports, files that had to go."""
    living = [process for process in family.tagged(run.tag) if process.pid not in spared]
    found = [f"process {family.describe(process)}" for process in family.wait_gone(living, GONE_S)]
    found += [
        f"shared memory {path}" for path in {str(path) for path in run.segments()} | shared_memory.left_since(shared)
    ]
    found += [f"port {port}" for port in seen.ports if _listens(port)]
    found += [f"file {path}" for path in seen.files if path.exists()]
    return tuple(found)


@contextlib.contextmanager
def cell(
    cells: list[Cell],
    run: RunDir,
    where: str,
    fault: str,
    phase: str,
    *,
    spared: Callable[[], frozenset[int]] = frozenset,
) -> Iterator[Seen]:
    """One cell: whatever happens inside, what was seen is written down, and judged at the end."""
    seen = Seen()
    shared = shared_memory.unused()
    yield seen
    left = survivors(run, seen, spared=spared(), shared=shared)
    done = Cell(where, fault, phase, seen.outcome, round(max(0.0, seen.late_s), 1), left, seen.next_one)
    cells.append(done)
    assert done.passed, done


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
