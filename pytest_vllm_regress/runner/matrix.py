"""Cases by environments, in parallel: environments are built while others run, and what is finished survives an interruption."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from ..cases import results
from ..cases.cells import cells
from ..cases.model import Case
from ..cases.results import RunResult
from ..errors import BuildError, UsageError
from ..util.rundir import scratch
from . import runner as runs
from .in_order import InOrder
from .journal import Journal

LOOK_S = 0.2  # between two looks at what the jobs have written


def named_environments(cases: Sequence[Case], env: Sequence[str], versions: str | None) -> list[str]:
    """The environments asked for, oldest vLLM first; those of the cases' evidence when none is asked for."""
    from ..environments.names import resolve
    from ..environments.recipes import find_file, load

    if env and versions:
        raise UsageError("--env and --versions contradict each other: give one of them")
    if versions is None:
        return list(env) or sorted(
            {name for case in cases for name in (*case.evidence.affected, *case.evidence.fixed)},
            key=lambda name: _age(resolve(name).target),
        )
    try:
        wanted = SpecifierSet(versions)
    except InvalidSpecifier:
        raise UsageError(
            f"--versions {versions!r}: not a PEP 440 specifier; allowed is for example '>=0.8,<0.12'"
        ) from None
    listed = [
        recipe for recipe in load(find_file()).recipes.values() if wanted.contains(recipe.target[1], prereleases=True)
    ]
    if not listed:
        raise UsageError(
            f"--versions {versions!r}: no environment of environments.toml has such a vLLM; `vllm-regress env list` shows them"
        )
    return [recipe.name for recipe in sorted(listed, key=lambda recipe: _age(recipe.target))]


def side_by_side(
    jobs: Sequence[runs.Job], at_once: int, build: Callable[[str], None], options: runs.Options, say: runs.Say
) -> runs.Outcome:
    """Jobs in parallel, their output one after the other in their order. One at a time: each on our own terminal."""
    if at_once == 1 or len(jobs) == 1:
        return runs.Runner(build, options, say).run(jobs)
    with scratch() as folder:
        journal = Journal(folder, ())
        show = InOrder([(job, journal.log(job)) for job in jobs], say)
        colour = ("--color=yes",) if sys.stdout.isatty() and "NO_COLOR" not in os.environ else ()
        options = dataclasses.replace(options, pytest_args=(*colour, *options.pytest_args))
        return Matrix(build, options, journal, say, show=show).run(jobs, at_once)


class Matrix:
    """Runs jobs in parallel. One thread builds environments, in order, while others run; ``build`` and ``start`` as in ``runs.Runner``.

    ``show`` is asked again and again which jobs have ended; without it a line is said for each job that ends.
    """

    def __init__(
        self,
        build: Callable[[str], None],
        options: runs.Options,
        journal: Journal,
        say: runs.Say,
        clock: Callable[[], float] = time.monotonic,
        show: Callable[[Collection[str]], None] | None = None,
    ) -> None:
        self._build = build
        self._options = options
        self._journal = journal
        self._say = say
        self._clock = clock
        self._show = show
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopping = threading.Event()

    def run(self, jobs: Sequence[runs.Job], at_once: int) -> runs.Outcome:
        """All jobs; what an earlier run finished is taken from the journal."""
        found = [self._journal.finished(job) for job in jobs]
        known = sum(len(cells(each.results)) for each in found)
        if known:
            are = "cell is" if known == 1 else "cells are"
            self._say(f"{known} {are} finished by an interrupted run of the same matrix (--fresh runs them again)")
        todo = [left for job in jobs if (left := self._journal.remaining(job)) is not None]
        unbuilt: list[str] = []
        interrupted = False
        started = self._clock()
        builder, runner = ThreadPoolExecutor(1, "build"), ThreadPoolExecutor(at_once, "run")
        pending: dict[Future[RunResult], runs.Job] = {}
        ended: dict[str, RunResult] = {}
        try:
            for job in todo:
                built = builder.submit(self._guarded_build, job.environment)
                pending[runner.submit(self._job, job, built, unbuilt)] = job
            while pending:
                done, _ = wait(pending, None if self._show is None else LOOK_S, return_when=FIRST_COMPLETED)
                for future in done:
                    job = pending.pop(future)
                    ended[job.environment] = future.result()
                    if self._show is None:
                        progress = (len(todo) - len(pending), len(todo), self._clock() - started)
                        self._say(_progress(job, ended[job.environment], *progress))
                if self._show is not None:
                    self._show(ended)
        except KeyboardInterrupt:
            interrupted = True
            self._interrupt()
        finally:
            self._stopping.set()
            builder.shutdown(wait=not interrupted, cancel_futures=True)
            runner.shutdown(wait=True, cancel_futures=True)
        if interrupted:
            found = [self._cut_short(job) for job in jobs]
        else:
            found += [ended[job.environment] for job in todo]
        return runs.Outcome(results.merge(found), tuple(unbuilt), interrupted)

    def _cut_short(self, job: runs.Job) -> RunResult:
        found = self._journal.finished(job)
        return found if self._journal.remaining(job) is None else runs.cut_short(job, self._options, found)

    def _guarded_build(self, name: str) -> None:
        if not self._stopping.is_set():
            self._build(name)

    def _job(self, job: runs.Job, built: Future[None], unbuilt: list[str]) -> RunResult:
        try:
            built.result()
        except BuildError as error:
            self._say(f"{job.environment}: {error}")
            unbuilt.append(job.environment)
            return runs.not_built(job, error, self._options)
        partial = self._journal.partial(job)
        partial.parent.mkdir(parents=True, exist_ok=True)
        with self._journal.log(job).open("wb") as log:
            found = runs.run_job(job, self._options, lambda *given: self._start(log, *given), partial)
        if not self._stopping.is_set():
            self._journal.add(job, found)
            partial.unlink(missing_ok=True)
        return found

    def _start(self, log: object, command: Sequence[str], environment: Mapping[str, str]) -> int:
        process = runs.start_command(command, environment, output=log)  # type: ignore[arg-type]
        self._running.add(process)
        try:
            if self._stopping.is_set():
                process.send_signal(signal.SIGINT)
            return process.wait()
        finally:
            self._running.discard(process)

    def _interrupt(self) -> None:
        """Let every pytest end its engines, then end what is left."""
        self._stopping.set()
        for process in list(self._running):
            process.send_signal(signal.SIGINT)
        until = time.monotonic() + runs.INTERRUPT_GRACE_S
        for process in list(self._running):
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(max(0.0, until - time.monotonic()))
            runs.end_command(process)


def _progress(job: runs.Job, found: RunResult, done: int, total: int, passed_s: float) -> str:
    verdicts = ", ".join(
        f"{cell.case_id} {cell.verdict.value}{'' if cell.expected else ' (not expected)'}"
        for cell in cells(found.results)
    )
    left = f"; about {_minutes(passed_s / done * (total - done))} left" if done < total else ""
    return f"[{done}/{total}] {job.environment}: {verdicts or 'nothing'}{left}"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _age(target: tuple[str, str]) -> tuple[object, str]:
    from packaging.version import Version

    return Version(target[1]), target[0]
