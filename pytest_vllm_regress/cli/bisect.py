"""``vllm-regress bisect``: find the releases, and the commit, at which a failure was fixed or
introduced."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, TextIO

import typer
from packaging.utils import canonicalize_name

from ..defaults import RACY_TRIALS
from ..errors import UsageError
from ..history.algorithm import Direction
from ..history.bisect import BisectReport, BisectRequest
from ..history.bisect import bisect as run
from ..history.candidates import CandidateRunner, output_file
from ..runner.batch import Executor, RunOptions
from ..runner.build import build_with_cache, check_gpu_fits
from ..runner.executors import SequentialExecutor
from ..runner.progress import BatchHeaders, OutputInOrder, Progress, Say, WithBar
from ..runner.pytest_run import run_command
from ..runner.run import BatchRunner
from ..util.masking import mask
from ..util.signals import terminate_as_interrupt
from ..util.text import printable
from .context import (
    HELP,
    INTERRUPTED,
    OK,
    UNBUILT,
    UNEXPECTED,
    Device,
    GpusEach,
    On,
    Source,
    WheelIndex,
    check_device,
    check_gpus,
    cluster,
    invocation,
    make_executor,
    print_json,
    say,
    warn,
)

app = typer.Typer(context_settings=HELP)


@app.command()
def bisect(
    context: typer.Context,
    case_id: Annotated[str, typer.Argument(metavar="CASE", help="The case's id.")],
    find_fix: Annotated[
        bool, typer.Option("--find-fix", help="Find the release that fixed the failure.")
    ] = False,
    find_break: Annotated[
        bool, typer.Option("--find-break", help="Find the release that introduced the failure.")
    ] = False,
    package: Annotated[
        str, typer.Option(metavar="NAME", help="Distribution whose releases are tried.")
    ] = "vllm",
    specifier: Annotated[
        str | None,
        typer.Option(
            "--releases",
            metavar="SPECIFIER",
            help="Releases to choose from, for example '>=0.7.3,<=0.9.2'.",
        ),
    ] = None,
    good: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION|REV", help="One end: a release or commit without the failure."
        ),
    ] = None,
    bad: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION|REV", help="The other end: a release or commit with the failure."
        ),
    ] = None,
    commits: Annotated[
        bool,
        typer.Option(
            "--commits",
            help="Continue to the commit, in the clone of --source: between --good and --bad, else between the releases found.",
        ),
    ] = False,
    every_parent: Annotated[
        bool,
        typer.Option(
            "--every-parent", help="Also try the commits of merged branches, not only the merges."
        ),
    ] = False,
    branch: Annotated[
        str,
        typer.Option(
            metavar="REV",
            help="Branch of the clone on which a release without a tag is found by its date.",
        ),
    ] = "HEAD",
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100,
            help=f"Runs of each candidate (default: 1; {RACY_TRIALS} where the case is racy).",
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Base environment in which releases of --package, or commits, are installed in turn.",
        ),
    ] = None,
    source: Source = None,
    wheel_index: WheelIndex = None,
    device: Device = None,
    repeat: Annotated[
        int,
        typer.Option(
            min=1, max=20, help="Number of INCONCLUSIVE runs after which a candidate is skipped."
        ),
    ] = 2,
    on: On = None,
    gpus: GpusEach = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the results in FILE and resume from it (default: in the cache).",
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Discard the results of an interrupted bisection.")
    ] = False,
    prefetch: Annotated[
        bool, typer.Option(help="Build the next environments while one runs.")
    ] = True,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the answer as JSON, and nothing else on standard output."
        ),
    ] = False,
) -> None:
    """Find the releases between which a failure was fixed or introduced, and the commit. Both ends
    are tried first; the case's range is ignored.

    Each candidate is one line, with the steps and the estimated time left; the output of builds and
    pytest goes to a file. With --on each candidate runs on the cluster. With --commits or --source
    the search continues to the commit, which is confirmed by further runs.
    Exit codes: 0 found; 1 no such change among these candidates; 2 usage; 3 no release gave a clear
    verdict; 130 interrupted (repeat the command to resume).
    """
    check_device(device)
    if find_fix and find_break:
        raise UsageError(
            "--find-fix and --find-break contradict each other: give one of them, or none for any change"
        )
    search_commits = commits or bool(source)
    if on is None:
        check_gpus(gpus)
    elif search_commits:
        raise UsageError(
            "bisect: commits need the clone, which other machines do not have: bisect commits without --on"
        )
    command = invocation(context)
    (case,) = command.select([case_id])
    request = BisectRequest(
        case=case,
        package=str(canonicalize_name(package)),
        direction=Direction.FIX if find_fix else Direction.BREAK if find_break else Direction.ANY,
        releases=specifier,
        good=good,
        bad=bad,
        search_releases=not (commits and good is not None and bad is not None),
        search_commits=search_commits,
        every_parent=every_parent,
        branch=branch,
        environment=env,
        device=device,
        repeat=repeat,
        trials=trials or (RACY_TRIALS if case.racy else 1),
        pytest_args=command.pytest_args,
        state_file=state,
        fresh=restart,
    )
    options = command.run_options(device)
    if on is None and options.asks_for_gpu:
        check_gpu_fits((*case.evidence.affected, *case.evidence.fixed))
    show = warn if as_json else say
    with (
        terminate_as_interrupt(),
        _resumable(),
        cluster(on),
        _output(options, case.id, show, as_json=as_json) as output,
    ):
        report = run(request, _candidate_runner(options, on, gpus, output, show, prefetch=prefetch))
    if as_json:
        print_json(report.to_json())
    else:
        for line in report.lines():
            say(line)
    raise typer.Exit(_exit_code(report))


@dataclasses.dataclass(frozen=True)
class _Output:
    """Where builds and pytest write:

    ``say`` their lines, ``stream`` the rest (None: standard output).
    """

    say: Say
    stream: TextIO | None
    to_file: bool


@contextlib.contextmanager
def _output(options: RunOptions, case_id: str, show: Say, *, as_json: bool) -> Iterator[_Output]:
    """Write output to the case's file, or with live output to our own terminal.

    With ``as_json``, only the answer goes to standard output.
    """
    if options.live:
        yield _Output(show, sys.stderr if as_json else None, to_file=False)
        return
    path = output_file(case_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    show(f"output of builds and pytest: {path} (vllm-regress -v bisect shows it)")
    with path.open("w", encoding="utf-8", errors="replace") as stream:

        def say_to_file(line: str) -> None:
            stream.write(f"{printable(mask(line))}\n")
            stream.flush()

        yield _Output(say_to_file, stream, to_file=True)


def _candidate_runner(
    options: RunOptions,
    on: str | None,
    gpus: int | None,
    output: _Output,
    show: Say,
    *,
    prefetch: bool,
) -> CandidateRunner:
    """Run candidates here or on the cluster ``on``. ``show`` tells the user about each."""
    build: Callable[[str], None] | None = None
    executor: Executor
    if on is None:
        build = build_with_cache(output.say)
        start = functools.partial(
            run_command, output=output.stream.buffer if output.stream else None
        )
        executor = SequentialExecutor(build, start)
    else:
        executor = make_executor(on, gpus, None, output.say)

    def progress() -> Progress:
        lines: Progress = BatchHeaders(output.say)
        if on is not None:
            lines = OutputInOrder(output.say, output.stream)
        return WithBar(lines) if output.to_file else lines

    runner = BatchRunner(executor, options, progress)
    return CandidateRunner(runner.run, build if prefetch else None, show)


def _exit_code(report: BisectReport) -> int:
    if report.found_change:
        return OK
    return UNEXPECTED if report.conclusive else UNBUILT


@contextlib.contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        warn("interrupted: repeat the command to resume")
        raise typer.Exit(INTERRUPTED) from None
