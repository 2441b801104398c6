"""Show what happens during a run: a line for each case with a progress bar, or pytest's own output.

Batches that run side by side write to files, and one place copies these to the terminal in order. A
batch that runs alone has the terminal itself, so that ``-- --pdb`` works.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ..cases.results import Cell, RunResult, group_into_cells
from ..errors import UsageError
from ..util.text import one_line, printable_output, split_output
from .batch import Batch, BatchFiles, BatchState, BatchUpdate, RunOptions, apply_expectations
from .pytest_run import ReportReader

if TYPE_CHECKING:
    import rich.progress

Say = Callable[[str], None]
"""Shows a line to the user."""

_CHUNK = 1 << 16


class Progress:
    """Shows a run to the user; this one shows nothing."""

    @property
    def pytest_args(self) -> tuple[str, ...]:
        """Arguments that pytest needs to be shown this way."""
        return ()

    def begin(
        self, batches: Sequence[Batch], remaining: Sequence[Batch], files: BatchFiles
    ) -> None:
        """The run begins: ``batches`` are all of it, ``remaining`` what an interrupted run had not
        finished."""

    def show(self, update: BatchUpdate | None) -> None:
        """An update came, or (None) some time has passed."""

    def end(self) -> None:
        """The run has ended or was interrupted."""


@dataclass
class BatchHeaders(Progress):
    """A line above each batch, for batches that use our own terminal one after the other."""

    say: Say

    def __post_init__(self) -> None:
        self._total = self._started = 0

    def begin(
        self, batches: Sequence[Batch], remaining: Sequence[Batch], files: BatchFiles
    ) -> None:
        self._total = len(batches)

    def show(self, update: BatchUpdate | None) -> None:
        if update is not None and update.state is BatchState.STARTED:
            self._started += 1
            self.say(f"[{self._started}/{self._total}] {update.batch}")


class OutputInOrder(Progress):
    """The output of batches that run side by side, copied from their log files to ``out`` one batch
    after the other,
    with control characters escaped: a log may come from another machine.

    The first batch that has not ended is shown as it is written. A batch that waits for its
    environment has no log file yet.
    """

    def __init__(self, say: Say, out: TextIO | None = None) -> None:
        self._say = say
        self._out = out or sys.stdout
        self._logs: list[tuple[Batch, Path]] = []
        self._ended: set[tuple[str, int]] = set()
        self._at = 0

    @property
    def pytest_args(self) -> tuple[str, ...]:
        """Colours."""
        return _colours()

    def begin(
        self, batches: Sequence[Batch], remaining: Sequence[Batch], files: BatchFiles
    ) -> None:
        self._logs = [(batch, files.log(batch)) for batch in remaining]
        self._begin_batch()

    def show(self, update: BatchUpdate | None) -> None:
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
        self._offset, self._held = 0, ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
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


class CaseLines(Progress):
    """A line for each case as it ends, with its seconds and the estimated time left. On a terminal
    a progress bar below.

    A case's line comes when its batch's report has it. ``logs``: print pytest's output of a batch
    in which something is unexpected. ``note``: what the line of a cell says besides.
    """

    def __init__(
        self,
        say: Say,
        *,
        logs: bool = True,
        bar: bool = True,
        note: Callable[[Cell], str] = lambda cell: "" if cell.expected else " (not expected)",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._note = say, note
        self._logs = logs
        self._clock = clock
        self._started_at = 0.0
        self._total = 0
        self._cells: dict[tuple[str, int], dict[tuple[str, str], bool]] = {}
        self._ended: set[tuple[tuple[str, int], str]] = set()
        """Cases that have a line, by batch: counting those in ``_cells`` would take longer with
        each."""
        self._running: dict[tuple[str, int], tuple[Batch, ReportReader, Path]] = {}
        self._building: dict[str, None] = {}
        self._bar = Bar() if bar else None

    @property
    def pytest_args(self) -> tuple[str, ...]:
        """Colours, as ``OutputInOrder``."""
        return _colours() if self._logs else ()

    def watching(self, build: Callable[[str], None]) -> Callable[[str], None]:
        """Return ``build`` so that the bar names the environment while it is built."""

        def watched(name: str) -> None:
            self._building[name] = None
            try:
                build(name)
            finally:
                self._building.pop(name, None)

        return watched

    def begin(
        self, batches: Sequence[Batch], remaining: Sequence[Batch], files: BatchFiles
    ) -> None:
        self._started_at = self._clock()
        self._total = sum(len(batch.cases) for batch in remaining)
        self._running = {
            batch.key: (batch, ReportReader(files.report(batch)), files.log(batch))
            for batch in remaining
        }
        if finished := sum(len(batch.cases) for batch in batches) - self._total:
            are = "cell is" if finished == 1 else "cells are"
            self._say(f"{finished} {are} finished by an earlier run of the same command")
        if self._bar:
            self._bar.start(self._total)

    def show(self, update: BatchUpdate | None) -> None:
        for batch, report, _ in self._running.values():
            with contextlib.suppress(UsageError):  # the runner judges a damaged report
                self._show_cases(batch, report.read())
        if update is not None:
            node = f" on {update.node['node']}" if "node" in update.node else ""
            self._show_cases(update.batch, update.run, node)
            if update.last:
                self._end_batch(update)
        if self._bar:
            self._bar.show(self._doing(), self._done)

    def end(self) -> None:
        if self._bar:
            self._bar.stop()

    def _show_cases(self, batch: Batch, run: RunResult, node: str = "") -> None:
        for cell in group_into_cells(apply_expectations(run, batch, RunOptions()).results):
            printed_cells = self._cells.setdefault(batch.key, {})
            if (cell.case_id, cell.device) in printed_cells:
                continue
            printed_cells[cell.case_id, cell.device] = cell.expected
            self._ended.add((batch.key, cell.case_id))
            done = self._done
            seconds = sum(result.duration_s for result in cell.results)
            self._say(
                f"[{done}/{self._total}] {cell.verdict.value} {cell.case_id} in {batch.environment}{node}, "
                f"{seconds:.0f} s{self._note(cell)}{self._time_left(done)}"
            )

    def _end_batch(self, update: BatchUpdate) -> None:
        batch, _, log = self._running.pop(update.batch.key)
        expected = all(self._cells.get(batch.key, {}).values())
        if self._logs and log.exists() and not (expected and update.run.as_expected):
            out = sys.stdout
            out.write(printable_output(log.read_text(errors="replace").rstrip("\n") + "\n"))
            out.flush()

    @property
    def _done(self) -> int:
        return len(self._ended)

    def _doing(self) -> str:
        running = [name for (name, _), (*_, log) in self._running.items() if log.exists()]
        doing = [("building", list(self._building)), ("running", list(dict.fromkeys(running)))]
        return "; ".join(f"{what} {', '.join(names)}" for what, names in doing if names)

    def _time_left(self, done: int) -> str:
        if done >= self._total:
            return ""
        return f"; {about((self._clock() - self._started_at) / done * (self._total - done))} left"


class WithBar(Progress):
    """Another progress with a bar on the terminal that names the batch that is running."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bar = Bar()

    @property
    def pytest_args(self) -> tuple[str, ...]:
        return self._progress.pytest_args

    def begin(
        self, batches: Sequence[Batch], remaining: Sequence[Batch], files: BatchFiles
    ) -> None:
        self._progress.begin(batches, remaining, files)
        self._bar.start(None)
        self._bar.show("; ".join(map(str, remaining)), 0)

    def show(self, update: BatchUpdate | None) -> None:
        self._progress.show(update)

    def end(self) -> None:
        self._bar.stop()
        self._progress.end()


class Bar:
    """A progress bar at the bottom of the terminal, with the elapsed time; nothing unless all our
    output goes to one.

    It is drawn on standard error by a thread of its own. What is printed meanwhile appears above
    it.
    """

    def __init__(self) -> None:
        self._progress: rich.progress.Progress | None = None

    def start(self, total: int | None) -> None:
        """Show the bar. ``total``: number of cases; None: unknown."""
        if not (sys.stdout.isatty() and sys.stderr.isatty()):
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )
        from rich.table import Column

        doing = TextColumn(
            "{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)
        )
        columns = (SpinnerColumn(), doing, TimeElapsedColumn())
        counts = () if total is None else (BarColumn(20), MofNCompleteColumn())
        self._progress = Progress(
            *columns, *counts, console=Console(stderr=True), transient=True, expand=True
        )
        self._progress.add_task("", total=total)
        self._progress.start()

    def show(self, doing: str, done: int) -> None:
        """Update what is being done, and the number of finished cases."""
        if self._progress is not None:
            self._progress.update(
                self._progress.task_ids[0], description=one_line(doing), completed=done
            )

    def stop(self) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.stop()


def about(seconds: float) -> str:
    """Return an estimated duration for people."""
    return f"about {seconds:.0f} s" if seconds < 90 else f"about {seconds / 60:.0f} min"


def _colours() -> tuple[str, ...]:
    """Return pytest's option for colours, which it would leave out because it writes to a file."""
    return ("--color=yes",) if sys.stdout.isatty() and "NO_COLOR" not in os.environ else ()
