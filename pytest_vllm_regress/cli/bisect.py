"""``vllm-regress bisect``: between which releases does a failure go, or come?"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from packaging.utils import canonicalize_name

from ..bisection.answer import Answer
from ..bisection.candidates import choose, environment_names
from ..bisection.search import Notes, Search
from ..cases.model import select
from ..environments.index import releases
from ..errors import UsageError
from ..runner import runner as runs
from ..util.paths import cache_root
from ..util.signals import terminate_as_interrupt
from .context import HELP, INTERRUPTED, OK, UNBUILT, UNEXPECTED, Source, check_device, invocation, print_json, say, warn

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
    good: Annotated[str | None, typer.Option(metavar="VERSION", help="One end: a release without the failure.")] = None,
    bad: Annotated[
        str | None, typer.Option(metavar="VERSION", help="The other end: a release with the failure.")
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --package: the environment that takes its releases in turn."),
    ] = None,
    source: Source = None,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="Device (default: each environment's own).")
    ] = None,
    repeat: Annotated[
        int, typer.Option(min=1, max=20, help="How often an INCONCLUSIVE release is run before it is skipped.")
    ] = 2,
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
    """Find the releases between which a failure goes or comes. Both ends are tried first; the case's own range is not believed.

    Exit codes: 0 found; 1 no such change among these releases; 2 usage; 3 no release could be told; 130 interrupted (the same command
    goes on from there).
    """
    from ..cases import proof

    check_device(device)
    if find_fix and find_break:
        raise UsageError("--find-fix and --find-break contradict each other: give one of them, or none for any change")
    ours = invocation(context)
    (case,) = select(ours.cases(), [case_id])
    package = str(canonicalize_name(package))
    name_of = environment_names(case, package, env)
    candidates = choose(case, package, releases(package), wanted, good, bad)
    tell = warn if as_json else say
    options = runs.Options(device, None, ours.pytest_args)
    key = [
        case.id,
        proof.fingerprint(case),
        package,
        name_of("X"),
        str(device),
        *map(str, candidates),
        *ours.pytest_args,
    ]
    notes = Notes(state or cache_root() / "bisect" / f"{_digest(key)}.json", key)
    if restart:
        notes.forget()
    with terminate_as_interrupt():
        build = runs.build_with_cache(tell)
        search = Search(
            case,
            candidates,
            name_of,
            notes,
            runs.Runner(build, options, tell),
            build if prefetch else None,
            repeat,
            tell,
        )
        try:
            search.run()
        except KeyboardInterrupt:
            warn("interrupted: the same command goes on from here")
            raise typer.Exit(INTERRUPTED) from None
    answer = Answer.of(case, package, candidates, search.known(), find_fix, find_break)
    if as_json:
        print_json(answer.to_json(notes.found))
    else:
        for line in answer.lines(notes.found):
            say(line)
    if state is None:
        notes.forget()
    raise typer.Exit(OK if answer.changes else UNBUILT if not answer.told else UNEXPECTED)


def _digest(key: Sequence[str]) -> str:
    return hashlib.sha256(repr(tuple(key)).encode()).hexdigest()[:16]
