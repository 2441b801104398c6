"""``vllm-regress bisect``."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Literal, TextIO

import typer

from ..defaults import RACY_TRIALS
from ..environments.index.releases import package_and_range
from ..errors import UsageError
from ..history.algorithm import Direction
from ..history.bisect import BisectRequest
from ..history.bisect import bisect as search
from ..history.candidates import CandidateRunner, output_file
from ..runner.batch import Executor, RunOptions
from ..runner.executors import SequentialExecutor, build_with_cache, check_gpu_fits
from ..runner.progress import BatchHeaders, OutputInOrder, Progress, Say, WithBar
from ..runner.pytest_run import run_command
from ..runner.run import BatchRunner
from ..util.masking import mask
from ..util.signals import terminate_as_interrupt
from ..util.text import printable
from .context import (
    INTERRUPTED,
    OK,
    UNBUILT,
    UNEXPECTED,
    BaseEnvironment,
    Branch,
    CaseId,
    Device,
    Fresh,
    GpusEach,
    Jobs,
    On,
    State,
    TextOrJson,
    Trials,
    check_gpus,
    cluster,
    invocation,
    make_executor,
    print_json,
    say,
    warn,
)

DIRECTIONS = {None: Direction.ANY, "fix": Direction.FIX, "break": Direction.BREAK}
Find = Annotated[
    Literal["fix", "break"] | None,
    typer.Option(help="Find only what fixed, or what introduced, the failure (default: both)."),
]
Releases = Annotated[
    str | None,
    typer.Option(
        metavar="RANGE",
        help="Releases to choose from, for example '>=0.7.3,<=0.9.2'; of another package with its "
        "name: 'xgrammar>=0.1.18'.",
    ),
]
Good = Annotated[
    str | None,
    typer.Option(metavar="VERSION|REV", help="One end: a release or commit without the failure."),
]
Bad = Annotated[
    str | None,
    typer.Option(
        metavar="VERSION|REV", help="The other end: a release or commit with the failure."
    ),
]
Commits = Annotated[
    bool,
    typer.Option(
        "--commits",
        help="Continue to the commit, in the clone of --source: between --good and --bad, else "
        "between the releases found.",
    ),
]
EveryParent = Annotated[
    bool,
    typer.Option(
        "--every-parent", help="Also try the commits of merged branches, not only the merges."
    ),
]
Repeat = Annotated[
    int,
    typer.Option(
        min=1, max=20, help="Number of INCONCLUSIVE runs after which a candidate is skipped."
    ),
]


def bisect(
    context: typer.Context,
    case_id: CaseId,
    find: Find = None,
    releases: Releases = None,
    good: Good = None,
    bad: Bad = None,
    commits: Commits = False,
    every_parent: EveryParent = False,
    branch: Branch = "HEAD",
    trials: Trials = None,
    env: BaseEnvironment = None,
    device: Device = None,
    repeat: Repeat = 2,
    jobs: Jobs = None,
    on: On = None,
    gpus: GpusEach = None,
    state: State = None,
    fresh: Fresh = False,
    format: TextOrJson = "text",
) -> None:
    """Find the release or commit that fixed or broke a case.

    Both ends are tried first; the case's range is ignored. Each candidate is one line, with the
    steps and the estimated time left; the output of builds and pytest goes to a file. The next
    environments are built while one runs (not with --jobs 1). With --on each candidate runs on the
    cluster. With --commits or --source the search continues to the commit, which is confirmed by
    further runs.

    Exit codes: 0 found; 1 no such change among these candidates; 2 usage; 3 no release gave a clear
    verdict; 130 interrupted (repeat the command to resume).
    """
    command = invocation(context)
    search_commits = commits or bool(command.sources)
    if on is None:
        check_gpus(gpus)
    elif search_commits:
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
        branch=branch,
        environment=env,
        device=device,
        repeat=repeat,
        trials=trials or (RACY_TRIALS if case.racy else 1),
        pytest_args=command.pytest_args,
        state_file=state,
        fresh=fresh,
    )
    options = command.run_options(device)
    if on is None and options.asks_for_gpu:
        check_gpu_fits((*case.evidence.affected, *case.evidence.fixed))
    as_json = format == "json"
    show = warn if as_json else say
    with (
        terminate_as_interrupt(),
        _resumable(),
        cluster(on),
        _output(options, case.id, show, as_json=as_json) as output,
    ):
        runner = _candidate_runner(options, on, gpus, output, show, ahead=jobs != 1)
        report = search(request, runner)
    if as_json:
        print_json(report.to_json())
    else:
        for line in report.lines():
            say(line)
    if report.found_change:
        raise typer.Exit(OK)
    raise typer.Exit(UNEXPECTED if report.conclusive else UNBUILT)


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
    show(f"output of builds and pytest: {path} (-v shows it)")
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
    ahead: bool,
) -> CandidateRunner:
    """Run candidates here or on the cluster ``on``. ``show`` tells the user about each; ``ahead``:
    build the next environments while one runs."""
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
    return CandidateRunner(runner.run, build if ahead else None, show)


@contextlib.contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        warn("interrupted: repeat the command to resume")
        raise typer.Exit(INTERRUPTED) from None
