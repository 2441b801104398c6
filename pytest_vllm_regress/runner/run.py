"""``run_batches``: run batches with an executor, judge their results, and keep what had finished
when the run is interrupted."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..cases.results import RunResult, merge_results, write_results
from ..cases.stored import is_results_file
from ..engines.processes.abandoned import remove_abandoned
from ..environments.names import sources_looked_up_once
from ..errors import DiskFull, UsageError
from ..util.files import check_writable
from ..util.rundir import scratch
from ..util.signals import blocked
from .batch import (
    Batch,
    BatchFiles,
    BatchState,
    BatchUpdate,
    Executor,
    RunOptions,
    RunOutcome,
    apply_expectations,
    interruption_note,
)
from .executors import SequentialExecutor, ThreadsExecutor
from .journal import Journal
from .plan import set_hangs_apart, share_workers, split_batches
from .progress import BatchHeaders, CaseLines, OutputInOrder, Progress, Say
from .slots import NEED
from .suite import EnvironmentRun, SuiteOutcome, read_suite_report

_log = logging.getLogger("vllm_regress.runner")


@dataclass(frozen=True)
class RunRequest:
    """Batches, the executor that runs them, options for all of them, and how the run is shown.

    Finished cases are kept in ``journal``, from which the same run is resumed. Without one they are
    kept only until the run ends.
    ``rescue`` gets the results so far, judged, if an error ends the run: a full disk, or output
    that nobody reads any more.
    """

    batches: Sequence[Batch]
    executor: Executor
    options: RunOptions
    progress: Progress
    journal: Journal | None = None
    rescue: Callable[[RunResult], None] = lambda run: None


@dataclass(frozen=True)
class LocalMachine:
    """How batches run on this machine: ``build`` makes an environment ready, ``at_once`` batches
    run side by side.

    ``spare(running)`` says whether one more may run beside those that are running; None: never.
    ``workers``: most workers for a batch that waits for documented hangs.
    """

    build: Callable[[str], None]
    at_once: int
    spare: Callable[[int], bool] | None = None
    workers: int = 1


def run_batches(request: RunRequest) -> RunOutcome:
    """Run the batches that the journal does not have yet; return all results, judged.

    An environment that cannot be built makes its cases INCONCLUSIVE, and the other batches are run.
    An interruption (``KeyboardInterrupt``) ends what is running and returns the results so far. Any
    other error ends it, too, after ``RunRequest.rescue`` was called.
    """
    with sources_looked_up_once(), _files(request.journal) as files:
        return _Run(request, files).run()


def local_request(
    batches: Sequence[Batch], machine: LocalMachine, options: RunOptions, say: Say
) -> RunRequest:
    """Return the request to run batches on this machine.

    When several may run side by side, documented hangs are set apart. What is left is split, or has
    several workers if it is fewer batches than can run side by side. With live output a batch that
    runs alone uses this process's terminal, so that ``--pdb`` works.
    """
    if machine.at_once > 1:
        workers = 1 if options.needs_terminal else machine.workers
        hanging, rest = set_hangs_apart(batches, workers)
        if workers > 1 and len(rest) < machine.at_once:
            most = machine.at_once if machine.spare is None else int(machine.at_once / NEED)
            batches = [*hanging, *share_workers(rest, min(most, workers))]
        else:
            batches = [*hanging, *(part for _, part in split_batches(rest, machine.at_once))]
    if options.live and (machine.at_once == 1 or len(batches) == 1):
        return RunRequest(batches, SequentialExecutor(machine.build), options, BatchHeaders(say))
    progress, build = batch_progress(options, say), machine.build
    if isinstance(progress, CaseLines):
        build = progress.watching(build)
    executor = ThreadsExecutor(build, machine.at_once, say, spare=machine.spare)
    return RunRequest(batches, executor, options, progress)


def batch_progress(options: RunOptions, say: Say) -> OutputInOrder | CaseLines:
    """Return what shows batches that write to log files: a line for each case, or pytest's output
    if it is to be live."""
    return OutputInOrder(say) if options.live else CaseLines(say)


@dataclass(frozen=True)
class BatchRunner:
    """Runs batches again and again with the same executor and options, as a bisection does.

    ``progress`` makes what shows one run.
    """

    executor: Executor
    options: RunOptions
    progress: Callable[[], Progress]

    def run(self, batches: Sequence[Batch]) -> RunOutcome:
        """As ``run_batches``."""
        return run_batches(RunRequest(batches, self.executor, self.options, self.progress()))


@contextlib.contextmanager
def _files(journal: Journal | None) -> Iterator[BatchFiles]:
    if journal is not None:
        yield journal.files
    else:
        with scratch() as folder:
            yield BatchFiles(folder)


@dataclass
class _Run:
    """One call of ``run_batches``.

    Results are kept without expectations and judged when the outcome is made.
    """

    request: RunRequest
    files: BatchFiles

    def __post_init__(self) -> None:
        self._results: dict[tuple[str, int], list[RunResult]] = {
            batch.key: [] for batch in self.request.batches
        }
        self._unbuilt: dict[str, None] = {}
        self._journal_is_complete = True
        self._lost: dict[str, None] = {}

    def run(self) -> RunOutcome:
        request, journal = self.request, self.request.journal
        remaining = list(request.batches)
        if journal is not None:
            journal.begin()
            for batch in request.batches:
                self._results[batch.key].append(journal.finished(batch))
            remaining = list(filter(None, map(journal.remaining, request.batches)))
        _log.info("%d batches, %d to run", len(request.batches), len(remaining))
        options = request.options.with_pytest_args(*request.progress.pytest_args)
        request.progress.begin(request.batches, remaining, self.files)
        try:
            with contextlib.closing(
                request.executor.execute(remaining, options, self.files)
            ) as updates:
                for update in updates:
                    if update is not None:
                        self._keep(update)
                    request.progress.show(update)
        except KeyboardInterrupt:
            remove_abandoned()  # a pytest that was killed, or whose terminal was closed, has left its run directory
            return self._outcome(self._finished_before_interruption, interrupted=True)
        except Exception:
            request.rescue(self._outcome(self._finished_before_interruption).run)
            raise
        finally:
            # A terminal that was closed; the results are still to be saved.
            with contextlib.suppress(OSError):
                request.progress.end()
        return self._outcome(lambda batch: self._results[batch.key])

    def _keep(self, update: BatchUpdate) -> None:
        """Store an update.

        Failures of a machine or a build are not recorded in the journal, so the next run tries
        those cases again.
        """
        batch, journal = update.batch, self.request.journal
        _log.info("%s: %s, %d results", batch, update.state.value, len(update.run.results))
        self._results[batch.key].append(update.run)
        if update.state is BatchState.UNBUILT:
            self._unbuilt[batch.environment] = None
        elif update.state is BatchState.LOST:
            self._lost[batch.environment] = None
        elif update.state is BatchState.FINISHED and journal is not None:
            self._record(journal, batch, update.run)
            if update.last:
                self.files.report(batch).unlink(missing_ok=True)

    def _record(self, journal: Journal, batch: Batch, run: RunResult) -> None:
        """Add results to the journal. On a full disk they are only in this process's memory."""
        try:
            journal.add(batch, run)
        except DiskFull as error:
            self._journal_is_complete = False
            note = f"{batch.environment}: {error}: the same command runs these cases again"
            self._results[batch.key].append(RunResult((), (note,)))

    def _finished_before_interruption(self, batch: Batch) -> list[RunResult]:
        """Return the results of an interrupted batch that count: cases that had ended, including
        those of a pytest that was stopped with the run."""
        journal = self.request.journal
        if journal is not None and self._journal_is_complete:
            with contextlib.suppress(DiskFull):
                results = [journal.finished(batch)]
                complete = journal.remaining(batch) is None
                return results if complete else [*results, interruption_note(batch)]
        results = [*self._results[batch.key], self.files.partial_results(batch)]
        complete = {case.id for case in batch.cases} <= {
            result.case_id for run in self._results[batch.key] for result in run.results
        }
        return results if complete else [*results, interruption_note(batch)]

    def _outcome(
        self, results_of: Callable[[Batch], list[RunResult]], *, interrupted: bool = False
    ) -> RunOutcome:
        options = self.request.options
        runs = (
            apply_expectations(merge_results(results_of(batch)), batch, options)
            for batch in self.request.batches
        )
        merged = merge_results(runs)
        return RunOutcome(merged, tuple(self._unbuilt), interrupted, tuple(self._lost))


def run_suite(
    batches: Sequence[Batch],
    executor: Executor,
    options: RunOptions,
    progress: Progress,
    show: Callable[[EnvironmentRun], None],
) -> SuiteOutcome:
    """Run the suite of ``options`` once for each batch, which have no cases. ``show`` gets each
    run when it ends."""
    runs: dict[str, EnvironmentRun] = {}
    with scratch() as folder, sources_looked_up_once():
        files = BatchFiles(folder)
        progress.begin(batches, batches, files)
        try:
            for update in executor.execute(batches, options, files):
                progress.show(update)
                if update is not None and update.last:
                    runs[update.batch.environment] = run = _run_of(update, files)
                    show(run)
        except KeyboardInterrupt:
            for batch in batches:
                if batch.environment not in runs and files.report(batch).exists():
                    update = BatchUpdate(batch, RunResult((), ("interrupted",)))
                    runs[batch.environment] = _run_of(update, files)
            return SuiteOutcome(_in_order(batches, runs), interrupted=True)
        finally:
            progress.end()
    return SuiteOutcome(_in_order(batches, runs))


def _in_order(
    batches: Sequence[Batch], runs: Mapping[str, EnvironmentRun]
) -> tuple[EnvironmentRun, ...]:
    return tuple(runs[b.environment] for b in batches if b.environment in runs)


def _run_of(update: BatchUpdate, files: BatchFiles) -> EnvironmentRun:
    unbuilt = update.state is BatchState.UNBUILT
    tests = read_suite_report(files.report(update.batch))
    return EnvironmentRun(update.batch.environment, tests, update.run.problems, unbuilt)


KEPT_COPIES = 20
"""Result files that are kept in the cache."""


def check_destination(destination: Path | None) -> None:
    """Raise ``UsageError`` if results cannot be written there.

    Called before the run, which may take hours.
    """
    if destination is not None:
        check_writable(
            destination if is_results_file(destination) else destination / "results.json"
        )


@blocked()
def save_results(
    run: RunResult, destination: Path | None, cache: Path, say: Say, now: float | None = None
) -> Path | None:
    """Write a copy of the results into the cache, and the results where the user asked (a
    directory, or a file ending in .json).

    A signal that ends the command waits. Return the path that the user asked for, if any.
    Raises ``UsageError`` if it cannot be written, which says where the copy is.
    """
    name = f"vllm-regress-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{os.getpid()}.json"
    copied = False
    try:
        write_results(cache / name, run)
        copied = True
        for oldest in sorted(cache.glob("vllm-regress-*.json"))[:-KEPT_COPIES]:
            if oldest.name != name:  # its date sorts first if the clock was set back
                oldest.unlink(missing_ok=True)
    except (OSError, UsageError) as error:
        say(f"no copy was kept: {error}")
    if destination is None:
        return None
    written = destination if is_results_file(destination) else destination / name
    try:
        write_results(written, run)
    except UsageError as error:
        raise UsageError(
            f"{error}. A copy of the results is in {cache / name}" if copied else str(error)
        ) from None
    return written


def rescue_to(destination: Path | None, cache: Path, say: Say) -> Callable[[RunResult], None]:
    """Return a function for ``RunRequest.rescue`` that saves results as ``save_results`` does and
    says where they are."""

    def rescue(run: RunResult) -> None:
        if run.results:
            written = save_results(run, destination, cache, say)
            say(f"the run ends early; the results so far are in {written or cache}")

    return rescue
