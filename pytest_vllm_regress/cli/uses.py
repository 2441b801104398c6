"""``vllm-regress uses``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..errors import UsageError
from .context import (
    FORMAT,
    OK,
    UNEXPECTED,
    Environments,
    Invocation,
    invocation,
    print_json,
    say,
    warn,
)

if TYPE_CHECKING:
    from ..answers.uses.smoke import Smoke
    from ..answers.uses.use import Project

EPILOG = (
    "Exit codes: 0 no release in the declared range (vllm>=X,<Y) breaks the project, or none is "
    "declared; 1 one does, or an environment of --env lacks something or a server does not start "
    "there; 2 usage or bad input; 3 an environment could not be built; 4 internal error."
)


def uses(
    context: typer.Context,
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PATH]",
            help="Directory of a project, or one of its files (default: this directory).",
        ),
    ] = None,
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B",
            help="Show what changed from release A to B of what PATH uses; without PATH everything.",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Option, variable, route, metric or dotted name that does not count; repeatable.",
        ),
    ] = None,
    format: Annotated[Literal["text", "json", "markdown", "sarif"], FORMAT] = "text",
    env: Environments = None,
) -> None:
    """Find the releases that have everything a project uses.

    Reads its files, of which it imports and runs nothing. With --env it also imports and binds each
    use, and starts each server command, in these environments.
    """
    from ..answers.api_history.store import history
    from ..answers.uses.answer import answer
    from ..answers.uses.presentation import report, to_json, to_sarif
    from ..answers.uses.project import read_project
    from ..util.report import to_markdown, to_terminal

    if format == "sarif" and (diff or env):
        raise UsageError("--format sarif does not go with --diff and --env")
    if diff is not None:
        if ignore or env:
            raise UsageError("--diff does not go with --ignore and --env")
        _print_diff(diff, path, format)
        return
    path = path or Path()
    result = answer(read_project(path, history()), history(), ignore or ())
    source = str(path)
    smokes = _smoke(result.project, env, invocation(context)) if env else []
    if format == "sarif":
        print_json(to_sarif(result, source))
    elif format == "json":
        print_json(to_json(result, source, smokes))
    else:
        render = to_markdown if format == "markdown" else to_terminal
        say(render(report(result, source, smokes)).rstrip())
    for note in result.project.notes:
        warn(f"note: {note}")
    raise typer.Exit(UNEXPECTED if result.broken or any(smoke.failed for smoke in smokes) else OK)


def _smoke(project: Project, environments: list[str], command: Invocation) -> list[Smoke]:
    """Return what each environment has of a project."""
    from ..answers.api_history.store import history
    from ..answers.uses.smoke import smoke
    from ..engines.standalone import bare_session

    command.confirm_downloads(environments)
    with bare_session(warn, device="sim") as session:
        return [smoke(session, name, project, history(), warn) for name in environments]


def _print_diff(versions: tuple[str, str], path: Path | None, format: str) -> None:
    from ..answers.api_history.store import history
    from ..answers.uses.diff import diff, release_number, report, to_json
    from ..answers.uses.project import read_project
    from ..util.report import to_markdown, to_terminal

    before, after = (release_number(history(), version) for version in versions)
    project = read_project(path, history()) if path is not None else None
    used_changes = diff(history(), before, after, project)
    if format == "json":
        print_json(to_json(used_changes, versions))
    else:
        render = to_markdown if format == "markdown" else to_terminal
        say(render(report(used_changes, versions)).rstrip())
    for note in project.notes if project is not None else ():
        warn(f"note: {note}")
