"""``vllm-regress uses``: which releases of vLLM have everything that a project uses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from .context import HELP, OK, UNEXPECTED, AsJson, print_json, say, warn

EPILOG = (
    "Exit codes: 0 the declared range (vllm>=X,<Y) has no release that lacks something, or none is declared; 1 it has one; "
    "2 usage or bad input; 4 internal error."
)
app = typer.Typer(context_settings=HELP, add_completion=False)


@app.command(epilog=EPILOG)
def uses(
    path: Annotated[
        Path,
        typer.Argument(metavar="[PATH]", help="Directory of a project, or one of its files (default: this directory)."),
    ] = Path(),
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Option, variable, route, metric or dotted name that does not count; repeatable."),
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
