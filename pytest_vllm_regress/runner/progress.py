"""Show what happens during a run: headers on our own terminal, the output of batches in order, or a line for each update.

Batches that run side by side write to files, and one place copies these to the terminal in order. A batch that runs alone has the terminal
itself, so that ``-- --pdb`` works.
"""

from __future__ import annotations

import codecs
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TextIO

from ..cases.cells import group_into_cells
from ..util.text import printable_output, split_output
from .batch import Batch, BatchState
from .executor import BatchUpdate
from .journal import BatchFiles

Say = Callable[[str], None]
"""Shows a line to the user."""

_CHUNK = 1 << 16


class Progress(Protocol):
    """Shows a run to the user."""

    @property
    def pytest_args(self) -> tuple[str, ...]:
        """Arguments that pytest needs to be shown this way."""
        ...

    def begin(self, batches: Sequence[Batch], remaining: Sequence[Batch], files: BatchFiles) -> None:
        """The run begins: ``batches`` are all of it, ``remaining`` what an interrupted run had not finished."""
        ...

    def show(self, update: BatchUpdate | None) -> None:
        """An update came, or (None) some time has passed."""
        ...


class BatchHeaders:
    """A line above each batch, for batches that use our own terminal one after the other."""

    pytest_args: tuple[str, ...] = ()

    def __init__(self, say: Say) -> None:
        self._say = say
        self._total = self._started = 0

    def begin(self, batches: Sequence[Batch], remaining: Sequence[Batch], files: BatchFiles) -> None:
        """As ``Progress``."""
        self._total = len(batches)

    def show(self, update: BatchUpdate | None) -> None:
        """As ``Progress``."""
        if update is not None and update.state is BatchState.STARTED:
            self._started += 1
            self._say(f"[{self._started}/{self._total}] {update.batch}")


class OutputInOrder:
    """The output of batches that run side by side, copied from their log files to ``out`` one batch after the other,
    with control characters escaped: a log may come from another machine.

    The first batch that has not ended is shown as it is written. A batch that waits for its environment has no log file yet.
    """

    def __init__(self, say: Say, out: TextIO | None = None) -> None:
        self._say = say
        self._out = out or sys.stdout
        self._logs: list[tuple[Batch, Path]] = []
        self._ended: set[tuple[str, int]] = set()
        self._at = 0

    @property
    def pytest_args(self) -> tuple[str, ...]:
        """Colours, which pytest would leave out because it writes to a file."""
        return ("--color=yes",) if sys.stdout.isatty() and "NO_COLOR" not in os.environ else ()

    def begin(self, batches: Sequence[Batch], remaining: Sequence[Batch], files: BatchFiles) -> None:
        """As ``Progress``."""
        self._logs = [(batch, files.log(batch)) for batch in remaining]
        self._begin_batch()

    def show(self, update: BatchUpdate | None) -> None:
        """As ``Progress``."""
        if update is not None and update.last:
            self._ended.add(update.batch.key)
        while self._at < len(self._logs):
            batch, log = self._logs[self._at]
            self._copy(log)
            if batch.key not in self._ended:
                return
            self._out.write(printable_output(self._held))
            self._at += 1
            self._begin_batch()

    def _begin_batch(self) -> None:
        self._offset, self._held, self._decoder = 0, "", codecs.getincrementaldecoder("utf-8")("replace")
        if self._at < len(self._logs):
            self._say(f"[{self._at + 1}/{len(self._logs)}] {self._logs[self._at][0]}")

    def _copy(self, log: Path) -> None:
        if not log.exists():
            return
        with log.open("rb") as stream:
            stream.seek(self._offset)
            while content := stream.read(_CHUNK):
                text, self._held = split_output(self._held + self._decoder.decode(content))
                self._out.write(printable_output(text))
            self._offset = stream.tell()
        self._out.flush()


class UpdateLines:
    """A line with the verdicts of each update and the estimated time left. Output stays in the log files."""

    pytest_args: tuple[str, ...] = ()

    def __init__(self, say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._started_at = 0.0
        self._total = 0
        self._done: set[tuple[str, str]] = set()

    def begin(self, batches: Sequence[Batch], remaining: Sequence[Batch], files: BatchFiles) -> None:
        """As ``Progress``."""
        self._started_at = self._clock()
        self._total = sum(len(batch.cases) for batch in remaining)
        if finished := sum(len(batch.cases) for batch in batches) - self._total:
            are = "cell is" if finished == 1 else "cells are"
            self._say(f"{finished} {are} finished by an interrupted run of the same matrix (--fresh runs them again)")

    def show(self, update: BatchUpdate | None) -> None:
        """As ``Progress``."""
        if update is None or not update.run.results:
            return
        self._done |= {(update.batch.environment, result.case_id) for result in update.run.results}
        cells = group_into_cells(update.run.results)
        verdicts = ", ".join(
            f"{cell.case_id} {cell.verdict.value}{'' if cell.expected else ' (not expected)'}" for cell in cells
        )
        node = f" on {update.node['node']}" if "node" in update.node else ""
        done = len(self._done)
        self._say(f"[{done}/{self._total}] {update.batch.environment}{node}: {verdicts}{self._time_left(done)}")

    def _time_left(self, done: int) -> str:
        if done >= self._total:
            return ""
        seconds = (self._clock() - self._started_at) / done * (self._total - done)
        return f"; about {seconds:.0f} s left" if seconds < 90 else f"; about {seconds / 60:.0f} min left"
