"""Run batches on this machine: one after the other on our own terminal, or side by side in threads."""

from __future__ import annotations

import contextlib
import functools
import itertools
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import IO

from ..environments.uv import cancelled_by
from ..errors import BuildError, BuildFailure, DiskFull, UsageError
from ..util.files import expand_home, is_full
from ..util.paths import writable_root
from ..util.sizes import MIB
from .batch import Batch, BatchFiles, BatchState, BatchUpdate, RunOptions, not_built, not_finished
from .plan import Seconds, recorded_seconds
from .progress import Say
from .pytest_run import (
    INTERRUPT_GRACE_S,
    ReportReader,
    StartCommand,
    end_command,
    run_batch,
    run_command,
    start_command,
)

TICK_S = 0.2
"""Seconds between two updates, so that output is shown meanwhile."""


@dataclass
class SequentialExecutor:
    """Builds each environment and runs its batch before the next one.

    ``start`` runs pytest's command and returns its exit status.
    """

    build: Callable[[str], None]
    start: StartCommand = run_command

    def execute(
        self, batches: Sequence[Batch], options: RunOptions, files: BatchFiles
    ) -> Generator[BatchUpdate | None, None, None]:
        """As ``Executor``."""
        for batch in batches:
            yield BatchUpdate.started(batch)
            yield _guarded(functools.partial(self._run, batch, options, files), batch, files)

    def _run(self, batch: Batch, options: RunOptions, files: BatchFiles) -> BatchUpdate:
        self.build(batch.environment)
        report = ReportReader(files.report(batch))
        return BatchUpdate(batch, run_batch(batch, options, self.start, report))


def _guarded(
    run: Callable[[], BatchUpdate], batch: Batch, files: BatchFiles, say: Say = lambda line: None
) -> BatchUpdate:
    """Run a batch. An environment that cannot be built, and a full disk, make its cases
    INCONCLUSIVE, and the other batches are run."""
    try:
        update = run()
        if disk_is_full() and not all(result.verdict.expected for result in update.run.results):
            return replace(update, state=BatchState.LOST)  # perhaps because of that
        return update
    except BuildError as error:
        say(f"{batch.environment}: {error}")
        full = error.failure is BuildFailure.DISK_FULL
        state = BatchState.LOST if full else BatchState.UNBUILT
        return BatchUpdate(batch, not_built(batch, error), state)
    except (OSError, DiskFull) as error:
        if not is_full(error):
            raise
        say(f"{batch.environment}: {error}")
        reported = files.partial_results(batch)
        return BatchUpdate(batch, not_finished(batch, reported, error), BatchState.LOST)


@dataclass
class ThreadsExecutor:
    """Runs batches side by side. One thread builds environments while batches run; ``build`` makes
    an environment ready.

    The first batch starts first. Then come batches that mostly wait for a documented hang, so that
    others compute meanwhile, then the longest ones by their recorded durations (``seconds``), so
    that a short one starts last. With ``seconds`` None batches are started in their order. While
    batches run, the environments of the next ``ahead`` batches (at least one) are built, or with
    None those of all.
    ``release`` is told each environment of which no batch is left.
    ``at_once`` batches run at a time, and one more whenever ``spare(running)`` allows it.
    ``start(log, command, environment)`` runs a command with its output in a file and returns its
    exit status.
    """

    build: Callable[[str], None]
    at_once: int
    say: Say
    start: Callable[..., int] | None = None
    spare: Callable[[int], bool] | None = None
    seconds: Seconds | None = recorded_seconds
    release: Callable[[str], None] = lambda name: None
    ahead: int | None = None

    def __post_init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self.stopping = threading.Event()

    def execute(
        self, batches: Sequence[Batch], options: RunOptions, files: BatchFiles
    ) -> Generator[BatchUpdate | None, None, None]:
        """As ``Executor``."""
        builder, runner = (
            ThreadPoolExecutor(1, "build"),
            ThreadPoolExecutor(max(1, len(batches)), "run"),
        )
        running: dict[Future[BatchUpdate], Batch] = {}
        try:
            waiting = deque(self._by_urgency(batches))
            built: dict[str, Future[None]] = {}

            def build_ahead() -> None:
                for batch in itertools.islice(waiting, self.ahead):
                    if batch.environment not in built:
                        built[batch.environment] = builder.submit(
                            self._build_unless_stopping, batch.environment
                        )

            build_ahead()
            while waiting or running:
                while waiting and self._has_room(len(running)):
                    batch = waiting.popleft()
                    run = functools.partial(
                        self._run_batch, batch, built[batch.environment], options, files
                    )
                    future = runner.submit(_guarded, run, batch, files, self.say)
                    running[future] = batch
                    build_ahead()
                done, _ = wait(running, TICK_S, return_when=FIRST_COMPLETED)
                for future in done:
                    name = running.pop(future).environment
                    if name not in {batch.environment for batch in (*waiting, *running.values())}:
                        self.release(name)
                    yield future.result()
                yield None
        except (KeyboardInterrupt, GeneratorExit):
            self._interrupt()
            raise
        finally:
            self.stopping.set()
            builder.shutdown(wait=True, cancel_futures=True)
            runner.shutdown(wait=True, cancel_futures=True)

    def _has_room(self, running: int) -> bool:
        return running < self.at_once or (self.spare is not None and self.spare(running))

    def _by_urgency(self, batches: Sequence[Batch]) -> list[Batch]:
        seconds = self.seconds
        if seconds is None:
            return list(batches)

        def urgency(batch: Batch) -> tuple[bool, float]:
            return batch.hangs, sum(seconds(case, batch.environment) for case in batch.cases)

        return [*batches[:1], *sorted(batches[1:], key=urgency, reverse=True)]

    def _build_unless_stopping(self, name: str) -> None:
        if not self.stopping.is_set():
            with cancelled_by(self.stopping):
                self.build(name)

    def _run_batch(
        self, batch: Batch, built: Future[None], options: RunOptions, files: BatchFiles
    ) -> BatchUpdate:
        built.result()
        report = ReportReader(files.report(batch))
        files.directory.mkdir(parents=True, exist_ok=True)
        with files.log(batch).open("wb") as log:

            def start(command: Sequence[str], environment: Mapping[str, str]) -> int:
                return (self.start or self._start_command)(log, command, environment)

            return BatchUpdate(batch, run_batch(batch, options, start, report, files.log(batch)))

    def _start_command(
        self, log: IO[bytes], command: Sequence[str], environment: Mapping[str, str]
    ) -> int:
        process = start_command(command, environment, output=log)
        self._running.add(process)
        try:
            if self.stopping.is_set():
                process.send_signal(signal.SIGINT)
            return process.wait()
        finally:
            self._running.discard(process)

    def _interrupt(self) -> None:
        """What does Ctrl-C do to running cases? Interrupt every pytest so that it ends its engines,
        then end those that are still running after ``INTERRUPT_GRACE_S``: SIGTERM, then SIGKILL. A
        second Ctrl-C ends the wait for one of them."""
        self.stopping.set()
        for process in list(self._running):
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + INTERRUPT_GRACE_S
        for process in list(self._running):
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(max(0.0, deadline - time.monotonic()))
            end_command(process)


FULL_DISK_BYTES = 16 * MIB
"""A disk with less free space counts as full: a failure there may have been caused by that."""


def disk_is_full() -> bool:
    """Return whether the disk of the cache, or that of temporary files, is full."""
    return any(
        shutil.disk_usage(path).free < FULL_DISK_BYTES
        for path in (writable_root(), tempfile.gettempdir())
    )


def build_with_cache(say: Say) -> Callable[[str], None]:
    """Return a function that builds an environment by name in the user's cache, and accepts an
    interpreter's path as it is."""
    from ..environments.cache import EnvironmentCache
    from ..environments.downloads import CarefulBuilds
    from ..environments.names import resolve
    from ..environments.sources import names_interpreter

    builds = CarefulBuilds(EnvironmentCache())

    def build(name: str) -> None:
        if not names_interpreter(name):
            with builds.lease(resolve(name), say):
                pass

    return build


def check_environments(batches: Sequence[Batch], *, gpu: bool = False) -> None:
    """Raise ``UsageError`` for an unknown name, a release that does not exist, or an interpreter
    without a package that cases are about.

    ``gpu``: real GPUs are asked for; see ``check_gpu_fits``.
    """
    from ..engines.target import inspect
    from ..environments.names import resolve, unavailable_reason
    from ..environments.sources import names_interpreter

    for batch in batches:
        if names_interpreter(batch.environment):
            if not expand_home(batch.environment).exists():
                raise UsageError(
                    f"--env {batch.environment}: no such interpreter. Give an interpreter's path or an environment's name"
                )
            inspect(batch.environment, expand_home(batch.environment).absolute(), "auto")
        else:
            resolve(batch.environment)
            if why := unavailable_reason(batch.environment):
                raise UsageError(why)
    if gpu:
        check_gpu_fits([batch.environment for batch in batches])


def check_gpu_fits(environments: Sequence[str]) -> None:
    """Raise ``UsageError`` if driver and GPUs of this machine are too old for all of the
    environments, which need not be built."""
    from ..engines.placement import Placement
    from ..engines.target import built_target

    placement = Placement(lambda line: None)
    problems = []
    for name in dict.fromkeys(environments):
        target = built_target(name, "gpu")
        try:
            placement.check_unbuilt(name) if target is None else placement.devices(target)
        except UsageError as error:
            problems.append(error)
        else:
            return
    if problems:
        raise problems[0]
