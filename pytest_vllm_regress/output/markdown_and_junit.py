"""Results as Markdown and as JUnit XML.

Texts from result files are not trusted: they are truncated; in Markdown anything but plain words is
shown as code, in XML non-printable characters are escaped.
"""

from __future__ import annotations

from ..cases.results import (
    MAX_SHOWN_REASON,
    Cell,
    RunResult,
    TestResult,
    cells_by_place,
    environments_oldest_first,
    group_into_cells,
    is_sparse,
)
from ..cases.verdict import excerpt
from ..util.report import Markup, Report, Section, Table, to_markdown
from ..util.text import markdown_inline, printable, render_text
from .table import outcome

SIMULATED = "sim: a simulated device; every part of vLLM is real but the model's arithmetic."


def markdown_text(run: RunResult) -> str:
    """Return GitHub-flavoured Markdown: a table of cases by environment, then the reasons for every
    unexpected cell."""
    cells = group_into_cells(run.results)
    if not cells:
        return "No verdicts.\n"
    unexpected = [cell for cell in cells if not cell.expected]
    words = f"{outcome(run, cells).capitalize()}."
    if unexpected:
        words = f"{len(unexpected)} of {len(cells)} cells are not as expected."
    parts: list[str | Table] = [_table(run, cells), Markup(words)]
    if any(cell.device == "sim" for cell in cells):
        parts.append(Markup(SIMULATED))
    sections = [Section(parts=parts)]
    for cell in unexpected:
        place = f"{markdown_inline(cell.case_id)} in {markdown_inline(cell.environment)}"
        sections.append(Section(parts=[Markup(f"**{place} on {cell.device}**"), tuple(cell.why())]))
    problems = [markdown_inline(excerpt(problem, MAX_SHOWN_REASON)) for problem in run.problems]
    notes = [Markup(f"Problem: {problem}") for problem in problems]
    return to_markdown(Report(sections=sections, notes=notes))


def _table(run: RunResult, cells: tuple[Cell, ...]) -> Table:
    """Return a row for each case, or, where that would be mostly empty, for each cell."""
    if is_sparse(cells):
        rows = [(cell.case_id, cell.environment, _verdict(cell)) for cell in cells]
        return Table(("case", "environment", "verdict"), rows)
    by_place, environments = cells_by_place(cells), environments_oldest_first(run.results)
    return Table(
        ("case", *environments),
        [
            (
                case_id,
                *(
                    Markup("; ".join(map(_verdict, by_place.get((case_id, name), ()))))
                    for name in environments
                ),
            )
            for case_id in dict.fromkeys(cell.case_id for cell in cells)
        ],
    )


def _verdict(cell: Cell) -> Markup:
    words = f"{cell.verdict.symbol} {cell.verdict.value}"
    return Markup(f"{words if cell.expected else f'**{words}**'} ({cell.device})")


def junit_xml(run: RunResult) -> str:
    """Return JUnit XML with a suite for each environment.

    An unexpected verdict is a failure. REPRODUCED and NOT_APPLICABLE count as skipped, as in
    pytest, and so does what passed but decides nothing.
    """
    environments: dict[str, list[TestResult]] = {}
    for result in run.results:
        environments.setdefault(result.environment, []).append(result)
    # All printable characters are valid in XML.
    return render_text(
        "junit.xml.txt",
        environments=environments,
        printable=printable,
        excerpt=excerpt,
        limit=MAX_SHOWN_REASON,
    )
