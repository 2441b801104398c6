"""The page of a run: one file with everything, or a folder with a page for each case and
environment, from the same parts.

One file can be attached, mailed and kept; the evidence is inside and closed until somebody asks for
it. A folder has an overview that stays small however many environments there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...cases.model import Case
from ...cases.results import (
    Cell,
    RunResult,
    TestResult,
    environments_oldest_first,
    group_into_cells,
    is_sparse,
)
from .rendering import (
    MAX_TEXT,
    Column,
    Grid,
    Mark,
    Row,
    ShownCell,
    case_page,
    date_text,
    file_name,
    place_of,
    render,
    shown,
    write_folder,
)


@dataclass(frozen=True)
class _Layout:
    """Where things are, seen from the overview: cases, the cells of a case behind ``separator``, and
    environments in the order of the columns."""

    cases: Mapping[str, Case]
    of_case: Callable[[str], str]
    separator: str
    environments: Mapping[str, str]

    def address(self, cell: Cell) -> str:
        place = place_of(cell.environment, cell.device)
        return f"{self.of_case(cell.case_id)}{self.separator}{place}"


def write_pages(folder: Path, run: RunResult, cases: Sequence[Case] = ()) -> Path:
    """Write the pages to ``folder`` and return the path of the overview.

    Raises ``UsageError`` if that fails.
    """
    write_folder(folder, pages(run, cases))
    return folder / "index.html"


def page(run: RunResult, cases: Sequence[Case] = (), now: float | None = None) -> str:
    """Return the HTML of one page with everything.

    ``cases``: for titles, ranges and links.
    ``now``: in seconds since the epoch.
    """
    environments = _by_environment(run)
    layout = _Layout(
        {case.id: case for case in cases},
        of_case=lambda case_id: f"#case-{file_name(case_id)}",
        separator=".",
        environments={name: f"#environment-{number}" for number, name in enumerate(environments)},
    )
    cells = group_into_cells(run.results)
    return render(
        "run.html",
        grid=_grid(cells, layout),
        sections=_shown_cells(cells, run, layout),
        case_anchor=layout.of_case,
        environments=environments,
        **_head(run, now),
    )


def pages(run: RunResult, cases: Sequence[Case] = (), now: float | None = None) -> dict[str, str]:
    """Return the HTML of all pages by their path:

    ``index.html``, ``cases/CASE.html``, ``environments/NAME.html``.
    """
    environments = _by_environment(run)
    layout = _Layout(
        {case.id: case for case in cases},
        of_case=case_page,
        separator="#",
        environments={name: f"environments/{file_name(name)}.html" for name in environments},
    )
    cells = group_into_cells(run.results)
    grid, head = _grid(cells, layout), _head(run, now)
    written = {"index.html": render("run.html", grid=grid, sections={}, **head)}
    below = {"nav": (("Overview", "../index.html"),), "made": head["made"]}
    by_case = _shown_cells(sorted(cells, key=lambda cell: cell.expected), run, layout, "../")
    for case_id, entries in by_case.items():
        written[case_page(case_id)] = render(
            "case.html",
            case_id=case_id,
            case=entries[0].case,
            entries=entries,
            record=None,
            **below,
        )
    for name, results in environments.items():
        written[layout.environments[name]] = render(
            "environment.html",
            name=name,
            grid=_grid(
                group_into_cells(results), replace(layout, environments={name: ""}), below="../"
            ),
            results=results,
            **below,
        )
    return written


def _head(run: RunResult, now: float | None) -> dict[str, object]:
    return {
        "problems": [shown(problem, MAX_TEXT) for problem in run.problems],
        "made": f"{date_text(now)} by pytest-vllm-regress {shown(run.tool_version)}",
    }


def _by_environment(run: RunResult) -> dict[str, list[TestResult]]:
    """Return the results of each environment, the oldest first."""
    results: dict[str, list[TestResult]] = {
        name: [] for name in environments_oldest_first(run.results)
    }
    for result in run.results:
        results[result.environment].append(result)
    return results


def _shown_cells(
    cells: Iterable[Cell], run: RunResult, layout: _Layout, below: str = ""
) -> dict[str, list[ShownCell]]:
    """Return the cells of each case. ``below``: the way from their page to the overview's folder."""
    by_case: dict[str, list[ShownCell]] = {}
    for cell in cells:
        entry = ShownCell(
            cell,
            layout.cases.get(cell.case_id),
            tool=run.tool_version,
            anchor=layout.address(cell).partition("#")[2],
            environment_href=below + layout.environments[cell.environment],
        )
        by_case.setdefault(cell.case_id, []).append(entry)
    return by_case


def _grid(cells: Sequence[Cell], layout: _Layout, below: str = "") -> Grid:
    """Return the overview of the cells."""
    sparse = is_sparse(cells)
    rows: dict[str, dict[str, list[Mark]]] = {}
    for cell in cells:
        mark = Mark(
            verdict=cell.verdict.value,
            href=below + layout.address(cell),
            expected=cell.expected,
            device=shown(cell.device),
            note=shown(cell.environment) if sparse else "",
        )
        row = rows.setdefault(cell.case_id, {})
        row.setdefault("" if sparse else cell.environment, []).append(mark)
    columns = (
        {"": Column("Environments")}
        if sparse
        else {name: Column(shown(name), href) for name, href in layout.environments.items()}
    )
    return Grid.unexpected_first(
        list(columns.values()),
        (
            Row(
                case_id,
                layout.cases.get(case_id),
                below + layout.of_case(case_id),
                [marks.get(name, ()) for name in columns],
            )
            for case_id, marks in rows.items()
        ),
    )
