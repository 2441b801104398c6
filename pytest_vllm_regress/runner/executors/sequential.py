"""Run batches one after the other on our own terminal."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from ...errors import BuildError
from ..batch import Batch, BatchState, RunOptions
from ..executor import BatchUpdate
from ..journal import BatchFiles
from ..pytest_run import ReportReader, StartCommand, run_batch, run_command
from ..unfinished import not_built


class SequentialExecutor:
    """Builds each environment and runs its batch before the next one.

    ``start`` runs pytest's command and returns its exit status.
    """

    def __init__(self, build: Callable[[str], None], start: StartCommand = run_command) -> None:
        self._build = build
        self._start = start

    def execute(
        self, batches: Sequence[Batch], options: RunOptions, files: BatchFiles
    ) -> Generator[BatchUpdate | None, None, None]:
        """As ``Executor``."""
        for batch in batches:
            yield BatchUpdate.started(batch)
            try:
                self._build(batch.environment)
            except BuildError as error:
                yield BatchUpdate(batch, not_built(batch, error), BatchState.UNBUILT)
            else:
                report = ReportReader(files.report(batch))
                yield BatchUpdate(batch, run_batch(batch, options, self._start, report))
