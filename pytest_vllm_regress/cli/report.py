"""``vllm-regress report``: result files merged, as a table, a page, Markdown, JUnit or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..util.paths import cache_root
from .context import HELP, OK, UNEXPECTED, AsJson, invocation, print_json, releases_of, say

app = typer.Typer(context_settings=HELP)


@app.command()
def report(
    context: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE|DIR", help="Result files, or directories of them (default: the last run)."),
    ] = None,
    as_json: AsJson = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the page of verdicts and evidence there.")
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write Markdown there, for the summary of a CI job; - prints it."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML there.")] = None,
) -> None:
    """Merge result files of several runs, shards and machines. Of two results for the same test the later one counts.

    Exit code 0: all verdicts as expected.
    """
    from ..cases.results import merge, read
    from ..reporting.junit import junit_xml
    from ..reporting.markdown import markdown_text
    from ..reporting.table import print_to_console
    from ..util.files import write_whole

    merged = merge([read(path) for path in result_files(paths or [])])
    if as_json:
        print_json(merged.to_json())
    elif markdown != Path("-"):
        print_to_console(merged)
    if html is not None:
        from ..reporting.html import write_page

        cases = invocation(context).cases_if_any()
        say(f"page: {write_page(html, merged, cases, releases_of(cases))}")
    if markdown == Path("-"):
        say(markdown_text(merged))
    elif markdown is not None:
        write_whole(markdown, markdown_text(merged))
    if junit is not None:
        write_whole(junit, junit_xml(merged))
    raise typer.Exit(OK if merged.as_expected else UNEXPECTED)


def result_files(paths: list[Path]) -> list[Path]:
    """The files that ``paths`` name; the last run's when it is empty."""
    if not paths:
        kept = sorted((cache_root() / "results").glob("*.json"))
        if not kept:
            raise UsageError("no run is kept yet: give result files, or start one with `vllm-regress run`")
        return kept[-1:]
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise UsageError(f"{path}: no result file (*.json) in this directory")
        found += inside
    return found
