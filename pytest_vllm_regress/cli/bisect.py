"""``vllm-regress bisect``."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, TextIO

from ..cases.rates import recent_results, unsteady
from ..cases.results import RunResult, TestResult
from ..defaults import RACY_TRIALS
from ..environments.releases import package_and_range
from ..errors import UsageError
from ..history.algorithm import Direction
from ..history.bisect import BisectRequest
from ..history.bisect import bisect as search
from ..history.candidates import CandidateRunner, output_file
from ..runner.batch import Batch, Executor, RunOptions, RunOutcome
from ..runner.executors import SequentialExecutor, build_with_cache, check_gpu_fits
from ..runner.progress import BatchHeaders, OutputInOrder, Progress, Say, WithBar
from ..runner.pytest_run import run_command
from ..runner.run import BatchRunner, save_results
from ..util.masking import mask
from ..util.paths import writable_root
from ..util.text import printable
from .context import (
    OK,
    UNBUILT,
    UNEXPECTED,
    Device,
    Invocation,
    TextOrJson,
    cluster,
    make_executor,
    print_json,
    say,
    speaker,
)

DIRECTIONS = {None: Direction.ANY, "fix": Direction.FIX, "break": Direction.BREAK}


def bisect(
    command: Invocation,
    case_id: str,
    find: Literal["fix", "break"] | None = None,
    releases: str | None = None,
    good: str | None = None,
    bad: str | None = None,
    commits: bool = False,
    every_parent: bool = False,
    trials: int | None = None,
    base_env: str | None = None,
    device: Device = None,
    repeat: int = 2,
    jobs: int | None = None,
    on: str | None = None,
    fresh: bool = False,
    format: TextOrJson = "text",
) -> int:
    """Find the release or commit that fixed or broke a case.

    Both ends are tried first; the case's range is ignored. Each candidate is one line, with the
    steps and the estimated time left; the output of builds and pytest goes to a file. The next
    environments are built while one runs (not with --jobs 1). With --on each candidate runs on the
    cluster. With --commits or --source the search continues to the commit, which is confirmed by
    further runs.

    Exit codes: 0 found; 1 no such change among these candidates; 2 usage; 3 no release gave a clear
    verdict; 130 interrupted (repeat the command to resume).
    """
    search_commits = commits or bool(command.sources)
    if on is not None and search_commits:
        raise UsageError(
            "bisect: commits need the clone, which other machines do not have: bisect commits without --on"
        )
    (case,) = command.select([case_id])
    package, specifier = package_and_range(releases) if releases else ("vllm", None)
    request = BisectRequest(
        case=case,
        package=package,
        direction=DIRECTIONS[find],
        releases=specifier,
        good=good,
        bad=bad,
        search_releases=not (commits and good is not None and bad is not None),
        search_commits=search_commits,
        every_parent=every_parent,
        environment=base_env,
        device=device,
        pytest_args=command.pytest_args,
        fresh=fresh,
    )
    options = command.run_options(device)
    if on is None and options.asks_for_gpu:
        check_gpu_fits((*case.evidence.affected, *case.evidence.fixed))
    show = speaker(format)
    with cluster(on), _output(options, case.id, show, format) as (write, stream):
        # The next environments are built while one runs.
        build = build_with_cache(write) if on is None else None
        batches = _batch_runner(options, on, build, write, stream)
        ahead = build if jobs != 1 else None
        rates = () if trials else unsteady(recent_results([case]))
        for rate in rates:
            show(f"{rate}: so often each candidate is run")
        runs = trials or (RACY_TRIALS if case.racy else 1)
        results: list[TestResult] = []

        def run(candidate: Sequence[Batch]) -> RunOutcome:
            outcome = batches.run(candidate)
            results.extend(outcome.run.results)
            return outcome

        try:
            report = search(request, CandidateRunner(run, ahead, show, repeat, runs, rates))
        finally:  # `show` and `judge` read what was run
            if results:
                save_results(RunResult(tuple(results)), None, writable_root() / "results", show)
    if format == "json":
        print_json(report.to_json())
    else:
        say(*report.lines())
    return OK if report.found_change else UNEXPECTED if report.conclusive else UNBUILT


Stream = Callable[[], TextIO | None]


@contextlib.contextmanager
def _output(
    options: RunOptions, case_id: str, show: Say, format: str
) -> Iterator[tuple[Say, Stream]]:
    """Provide what builds and pytest write to: a function for their lines, and what returns a stream
    for the rest (None: standard output). That is the case's file, or our own terminal with live
    output."""
    if options.live:
        yield show, lambda: None if format == "text" else sys.stderr
        return
    path = output_file(case_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    show(f"output of builds and pytest: {path} (-v shows it)")
    opening = threading.Lock()
    with contextlib.ExitStack() as files:

        @functools.cache
        def opened() -> TextIO:
            return files.enter_context(path.open("w", encoding="utf-8", errors="replace"))

        def stream() -> TextIO:
            """Not before it is needed: the same command may run, and this one be refused."""
            with opening:  # the next environment is built in a thread
                return opened()

        def say_to_file(line: str) -> None:
            stream().write(f"{printable(mask(line))}\n")
            stream().flush()

        yield say_to_file, stream


def _batch_runner(
    options: RunOptions,
    on: str | None,
    build: Callable[[str], None] | None,
    write: Say,
    stream: Stream,
) -> BatchRunner:
    """Run candidates here, with ``build``, or on the cluster ``on``."""
    executor: Executor
    progress: Callable[[], Progress]
    if build is not None:

        def start(command: Sequence[str], environment: Mapping[str, str]) -> int:
            file = stream()
            return run_command(command, environment, output=file.buffer if file else None)

        executor = SequentialExecutor(build, start)
        progress = partial(BatchHeaders, write)
    else:
        executor = make_executor(on, None, write)

        def output_in_order() -> Progress:
            return OutputInOrder(write, stream())

        progress = output_in_order
    return BatchRunner(executor, options, progress if options.live else lambda: WithBar(progress()))
