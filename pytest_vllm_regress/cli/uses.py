"""``vllm-regress uses``: which releases of vLLM have everything that a project uses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from .context import HELP, OK, UNEXPECTED, AsJson, print_json, say, warn

EPILOG = (
    "Exit codes: 0 no release in the declared range (vllm>=X,<Y) breaks the project, or none is declared; 1 one does; "
    "2 usage or bad input; 4 internal error."
)
app = typer.Typer(context_settings=HELP, add_completion=False)


@app.command(epilog=EPILOG)
def uses(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[PATH]", help="Directory of a project, or one of its files (default: this directory)."),
    ] = None,
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B", help="Show what changed from release A to B of what PATH uses; without PATH everything."
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Option, variable, route, metric or dotted name that does not count; repeatable."
        ),
    ] = None,
    as_json: AsJson = False,
    as_sarif: Annotated[bool, typer.Option("--sarif", help="Print SARIF 2.1.0.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Find the releases of vLLM that have everything a project uses. Reads its files; imports and runs nothing."""
    from ..api_history.store import history
    from ..uses.answer import answer
    from ..uses.project import read_project
    from ..uses.report import markdown, text, to_json

    if as_json + as_sarif + as_markdown > 1:
        raise UsageError("--json, --sarif and --markdown contradict each other: give one of them")
    if diff is not None:
        if as_sarif or ignore:
            raise UsageError("--diff takes --json or --markdown, neither --sarif nor --ignore")
        _diff(diff, path, as_json, as_markdown)
        return
    path = path or Path()
    result = answer(read_project(path, history()), history(), ignore or ())
    source = str(path)
    if as_sarif:
        from ..uses.sarif import to_sarif

        print_json(to_sarif(result, source))
    elif as_json:
        print_json(to_json(result, source))
    elif as_markdown:
        say(markdown(result, source))
    else:
        for line in text(result, source):
            say(line)
    for note in result.project.notes:
        warn(f"note: {note}")
    raise typer.Exit(UNEXPECTED if result.broken else OK)


def _diff(versions: tuple[str, str], path: Path | None, as_json: bool, as_markdown: bool) -> None:
    from ..api_history.store import history
    from ..uses.diff import diff, markdown, release_number, text, to_json
    from ..uses.project import read_project

    before, after = (release_number(history(), version) for version in versions)
    project = read_project(path, history()) if path is not None else None
    found = diff(history(), before, after, project)
    if as_json:
        print_json(to_json(found, versions))
    elif as_markdown:
        say(markdown(found, versions))
    else:
        for line in text(found, versions):
            say(line)
    for note in project.notes if project is not None else ():
        warn(f"note: {note}")
