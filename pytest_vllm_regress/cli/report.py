"""``vllm-regress report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .context import FORMAT, OK, UNEXPECTED, invocation, print_json, say, warn


def report(
    context: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE|DIR", help="Result files, or directories of them (default: the last run)."
        ),
    ] = None,
    format: Annotated[Literal["text", "json", "html", "markdown", "junit"], FORMAT] = "text",
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE|DIR",
            help="Write results.json, page.html, summary.md or junit.xml, by the ending; without "
            "one a folder with a page for each case and environment. Repeatable.",
        ),
    ] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="Add the verdicts to the table beside the cases (verdicts.json)."
        ),
    ] = False,
) -> None:
    """Merge result files and show them in any format.

    The files may be of several runs, shards and machines. The later of two results for the same
    test counts. Exit code 0: all verdicts as expected.
    """
    from ..cases.results import merge_results, read_results, write_results
    from ..cases.stored import is_results_file, result_files
    from ..output.formats import OutputFiles, rendered
    from ..output.pages.run_page import write_pages
    from ..output.table import print_to_console

    command = invocation(context)
    show = say if format == "text" else warn
    inputs = result_files(paths or [])
    files = OutputFiles.of(out, inputs)
    merged = merge_results([read_results(path) for path in inputs])
    files.write_documents(merged, command.cases_if_any, show)
    if files.results is not None and is_results_file(files.results):
        write_results(files.results, merged)
        show(f"results: {files.results}")
    elif files.results is not None:
        show(f"pages: {write_pages(files.results, merged, command.cases_if_any())}")
    if write:
        from ..answers.audit import verdict_table

        cases = command.cases()
        place = cases[0].directory.parent
        count = verdict_table.record(place, cases, merged.results)
        show(f"{count} verdicts are new in {place / verdict_table.FILE}")
    if format == "text":
        print_to_console(merged)
    elif format == "json":
        print_json(merged.to_json())
    else:
        say(rendered(format, merged, command.cases_if_any))
    raise typer.Exit(OK if merged.as_expected else UNEXPECTED)
