"""Results as Markdown.

Texts from result files are not trusted: anything but plain words is shown as code, and truncated.
"""

from __future__ import annotations

from ..cases.results import (
    Cell,
    RunResult,
    cells_by_place,
    environments_oldest_first,
    group_into_cells,
    is_sparse,
)
from ..cases.verdict import excerpt
from ..util.text import markdown_cell, markdown_inline
from .symbols import SYMBOLS

MAX_REASON = 600


def markdown_text(run: RunResult) -> str:
    """Return GitHub-flavoured Markdown: a table of cases by environment, then the reasons for every
    unexpected cell."""
    all_cells = group_into_cells(run.results)
    if not all_cells:
        return "No verdicts.\n"
    lines = (
        _list(all_cells)
        if is_sparse(all_cells)
        else _table(all_cells, environments_oldest_first(run.results))
    )
    unexpected = [cell for cell in all_cells if not cell.expected]
    expected = "As expected, as far as there are verdicts." if run.problems else "All as expected."
    lines += [
        "",
        f"{len(unexpected)} of {len(all_cells)} cells are not as expected."
        if unexpected
        else expected,
    ]
    if any(cell.device == "sim" for cell in all_cells):
        lines.append(
            "sim: a simulated device; every part of vLLM is real but the model's arithmetic."
        )
    for cell in unexpected:
        lines += [
            "",
            f"**{markdown_inline(cell.case_id)} in {markdown_inline(cell.environment)} on {cell.device}**",
            "",
        ]
        lines += [f"- {markdown_inline(line)}" for line in cell.why()]
    return (
        "\n".join(
            [
                *lines,
                *(
                    f"\nProblem: {markdown_inline(excerpt(problem, MAX_REASON))}"
                    for problem in run.problems
                ),
            ]
        )
        + "\n"
    )


def _table(all_cells: tuple[Cell, ...], environments: list[str]) -> list[str]:
    by_place = cells_by_place(all_cells)
    lines = [
        "| case | " + " | ".join(map(markdown_cell, environments)) + " |",
        "| --- |" + " --- |" * len(environments),
    ]
    for case_id in dict.fromkeys(cell.case_id for cell in all_cells):
        row = ["; ".join(map(_cell, by_place.get((case_id, name), ()))) for name in environments]
        lines.append(f"| {markdown_cell(case_id)} | " + " | ".join(row) + " |")
    return lines


def _list(all_cells: tuple[Cell, ...]) -> list[str]:
    rows = [
        f"| {markdown_cell(cell.case_id)} | {markdown_cell(cell.environment)} | {_cell(cell)} |"
        for cell in all_cells
    ]
    return ["| case | environment | verdict |", "| --- | --- | --- |", *rows]


def _cell(cell: Cell) -> str:
    verdict = f"{SYMBOLS[cell.verdict]} {cell.verdict.value}"
    return f"{verdict if cell.expected else f'**{verdict}**'} ({cell.device})"
