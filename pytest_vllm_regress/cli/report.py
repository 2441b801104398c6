"""``vllm-regress report``."""

from __future__ import annotations

from typing import Literal

from ..answers.audit import verdict_table
from ..cases.results import merge_results, read_results, write_results
from ..cases.stored import is_results_file, result_files
from ..output.formats import OutputFiles, rendered
from ..output.pages.run_page import write_pages
from ..output.table import print_to_console
from .context import OK, UNEXPECTED, Invocation, Paths, print_json, say, speaker


def report(
    command: Invocation,
    paths: Paths = None,
    format: Literal["text", "json", "html", "markdown", "junit"] = "text",
    out: Paths = None,
    write: bool = False,
) -> int:
    """Merge result files and show them in any format.

    The files may be of several runs, shards and machines. The later of two results for the same
    test counts. Exit code 0: all verdicts as expected.
    """

    show = speaker(format)
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
    return OK if merged.as_expected else UNEXPECTED
