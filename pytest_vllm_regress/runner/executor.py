"""The protocol of executors, which run batches somewhere, and the updates that they yield."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping, Sequence
from typing import Protocol

from ..cases.results import RunResult
from .batch import Batch, BatchState, RunOptions
from .journal import BatchFiles


@dataclasses.dataclass(frozen=True)
class BatchUpdate:
    """Results of a batch, or of some of its cases. ``last``: there will be no more.

    ``node``: facts of the machine, if it is not this one.
    """

    batch: Batch
    run: RunResult
    state: BatchState = BatchState.FINISHED
    last: bool = True
    node: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)

    @classmethod
    def started(cls, batch: Batch) -> BatchUpdate:
        """The update that a batch was taken up."""
        return cls(batch, RunResult(), BatchState.STARTED, last=False)


class Executor(Protocol):
    """Runs batches somewhere."""

    def execute(
        self, batches: Sequence[Batch], options: RunOptions, files: BatchFiles
    ) -> Generator[BatchUpdate | None, None, None]:
        """Run the batches and yield updates as they come, and None now and then so that output can
        be shown.

        Reports and output of running batches go to ``files``. Closing the generator early ends what
        is still running.
        """
        ...
