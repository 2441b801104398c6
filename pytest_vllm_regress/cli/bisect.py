"""``vllm-regress bisect``: between which releases does a failure go, or come?"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from packaging.utils import canonicalize_name

from ..bisection.algorithm import State
from ..bisection.answer import Answer
from ..bisection.candidates import choose, commit_environments, environment_names
from ..bisection.commits import end_of, history
from ..bisection.culprit import Culprit, Hunt, find, hunt_json, report
from ..bisection.search import Notes, Plan, Search
from ..cases import proof
from ..cases.model import select
from ..environments.index import releases
from ..environments.sources import PROJECTS, clone_of
from ..errors import UsageError
from ..runner import runner as runs
from ..runner.matrix import Carried
from ..util.signals import terminate_as_interrupt
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
    carrier,
    check_device,
    check_gpus,
    cluster,
    invocation,
    print_json,
    say,
    warn,
)

RACY_TRIALS = 5

app = typer.Typer(context_settings=HELP)


@app.command()
def bisect(
    context: typer.Context,
    case_id: Annotated[str, typer.Argument(metavar="CASE", help="The case's id.")],
    find_fix: Annotated[
        bool, typer.Option("--find-fix", help="Look for the release that does not have the failure any more.")
    ] = False,
    find_break: Annotated[
        bool, typer.Option("--find-break", help="Look for the release that brought the failure.")
    ] = False,
    package: Annotated[str, typer.Option(metavar="NAME", help="The distribution whose releases are tried.")] = "vllm",
    wanted: Annotated[
        str | None,
        typer.Option("--releases", metavar="SPECIFIER", help="Those to choose from, for example '>=0.7.3,<=0.9.2'."),
    ] = None,
    good: Annotated[
        str | None, typer.Option(metavar="VERSION|REV", help="One end: a release (or a commit) without the failure.")
    ] = None,
    bad: Annotated[
        str | None, typer.Option(metavar="VERSION|REV", help="The other end: a release (or a commit) with the failure.")
    ] = None,
    commits: Annotated[
        bool,
        typer.Option(
            "--commits",
            help="Go on to the commit, in the clone of --source: between --good and --bad, else between the releases that are found.",
        ),
    ] = False,
    every_parent: Annotated[
        bool, typer.Option("--every-parent", help="Commits of merged branches too, not the merges alone.")
    ] = False,
    branch: Annotated[
        str, typer.Option(metavar="REV", help="Where a release without a tag is looked for in the clone, by its day.")
    ] = "HEAD",
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, max=100, help=f"Runs of each candidate (default: 1; {RACY_TRIALS} where the case is racy)."
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The environment that takes releases of --package, or commits, in turn."),
    ] = None,
    source: Source = None,
    wheel_index: WheelIndex = None,
    device: Device = None,
    repeat: Annotated[
        int, typer.Option(min=1, max=20, help="How often an INCONCLUSIVE release is run before it is skipped.")
    ] = 2,
    on: On = None,
    gpus: GpusEach = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where what was found is kept, and resumed from (default: the cache)."),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Forget what an interrupted bisection had found.")] = False,
    prefetch: Annotated[bool, typer.Option(help="Build the next environments while one runs.")] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the answer as JSON, and nothing else on standard output.")
    ] = False,
) -> None:
    """Find the releases between which a failure goes or comes, and the commit. Both ends are tried first; the case's own range is not believed.

    With --on each candidate is run on the cluster. With --commits, or where --source names a clone, it goes on to the commit and confirms it.
    Exit codes: 0 found; 1 no such change among these candidates; 2 usage; 3 no release gave a clear verdict; 130 interrupted (the same command
    goes on from there).
    """
    check_device(device)
    if find_fix and find_break:
        raise UsageError("--find-fix and --find-break contradict each other: give one of them, or none for any change")
    ours = invocation(context)
    (case,) = select(ours.cases(), [case_id])
    package = str(canonicalize_name(package))
    tell = warn if as_json else say
    trials = trials or (RACY_TRIALS if case.racy else 1)
    build = runs.build_with_cache(tell)
    options = runs.Options(device, None, ours.pytest_args, ours.cases_dir)
    on_to_commits = commits or bool(source)
    runner: runs.RunsJobs
    if on is None:
        check_gpus(gpus)
        runner = runs.Runner(build, options, tell, functools.partial(runs.run_command, to_stderr=as_json))
    elif on_to_commits:
        raise UsageError(
            "bisect: commits need the clone, which other machines do not have: search them here, without --on"
        )
    else:
        runner = Carried(carrier(on, gpus, None, tell), options, tell, sys.stderr if as_json else None)
    ahead = build if prefetch and on is None else None
    direct = commits and good is not None and bad is not None
    wanted_kind = None if not (find_fix or find_break) else find_fix
    environment = commit_environments(case, package, env) if on_to_commits else None
    released = (
        None if direct else environment_names(case, package, env if package != "vllm" or not on_to_commits else None)
    )

    def notes_of(*key: str) -> Notes:
        whole = [case.id, proof.fingerprint(case), package, str(device), str(trials), *key, *ours.pytest_args]
        beside = ".commits" if key[0] == "commits" else ""
        notes = Notes(Path(f"{state}{beside}"), whole) if state else Notes.in_cache(whole)
        if restart:
            notes.forget()
        return notes

    kept: list[Notes] = []
    answer: Answer | None = None
    culprits: list[Culprit] = []
    hunts: list[tuple[Hunt, Notes]] = []
    with terminate_as_interrupt(), _resumable(), cluster(on):
        pairs = [(good, bad)] if direct else []
        if released is not None:
            candidates = choose(case, package, releases(package), wanted, good, bad)
            names = tuple(map(str, candidates))
            plan = Plan(case, names, tuple(map(released, names)), repeat=repeat, trials=trials)
            notes = notes_of("releases", *plan.environments)
            kept.append(notes)
            search = Search(plan, notes, runner, ahead, tell)
            search.run()
            answer = Answer.of(case, package, candidates, search.known(), find_fix, find_break)
            for line in [] if as_json else answer.lines(notes.found):
                say(line)
            pairs = [(names[each.low], names[each.high]) for each in answer.changes]
        for one, other in pairs if environment else ():
            assert environment is not None
            clone = clone_of(PROJECTS[package])
            first, second = (end_of(PROJECTS[package], clone, str(end), branch) for end in (one, other))
            commits_between = history(PROJECTS[package], clone, first, second, first_parent=not every_parent)
            hunt = Hunt(case, commits_between, environment, repeat, trials, (first, second) if direct else None)
            notes = notes_of("commits", *hunt.plan().environments)
            kept.append(notes)
            hunts.append((hunt, notes))
            culprits += find(hunt, notes, runner, ahead, tell)
    mine = [each for each in culprits if wanted_kind is None or each.is_fix == wanted_kind]
    if as_json:
        print_json(
            (answer.to_json(kept[0].found) if answer else {"case": case.id, "package": package})
            | ({"commits": [hunt_json(hunt, notes, mine) for hunt, notes in hunts]} if hunts else {})
        )
    else:
        for hunt, notes in hunts:
            for line in report(hunt, notes, mine):
                say(line)
    told = any(each.state is not State.SKIPPED for notes in kept for each in notes.found.values())
    if state is None:
        for notes in kept:
            notes.forget()
    found = bool(mine) if hunts else bool(answer and answer.changes)
    raise typer.Exit(OK if found else UNEXPECTED if told else UNBUILT)


@contextlib.contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        warn("interrupted: the same command goes on from here")
        raise typer.Exit(INTERRUPTED) from None
