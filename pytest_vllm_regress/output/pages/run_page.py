"""The page of a run: one file with everything, or a folder with a page for each case and
environment, from the same parts.

One file can be attached, mailed and kept; the evidence is inside and closed until somebody asks for
it. A folder has an overview that stays small however many environments there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from ...util.files import write_atomically
from .overview import Column, Entry, Grid, Mark, Row, unexpected_first, versions_of
from .rendering import (
    MAX_TEXT,
    case_page,
    date_text,
    file_name,
    place_of,
    render,
    shown,
    write_folder,
)

Address = Callable[[Cell, int], str]
"""The address of the evidence of a cell, of which the number is given, from the overview."""


def write_page(path: Path, run: RunResult, cases: Sequence[Case] = ()) -> Path:
    """Write the page to ``path``. Raises ``UsageError`` if that fails."""
    write_atomically(path, page(run, cases))
    return path


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
    by_id = {case.id: case for case in cases}
    cells = group_into_cells(run.results)
    environments = _by_environment(run)
    places = {name: f"#environment-{number}" for number, name in enumerate(environments)}
    entries: dict[str, list[Entry]] = {}
    for number, cell in enumerate(cells):
        anchor, case = f"evidence-{number}", by_id.get(cell.case_id)
        entry = Entry(cell, case, run.tool_version, anchor, places[cell.environment])
        entries.setdefault(cell.case_id, []).append(entry)
    return render(
        "run.html",
        grid=_grid(
            cells,
            by_id,
            places,
            address=lambda _, number: f"#evidence-{number}",
            of_case=lambda case_id: f"#{_anchor(case_id)}",
        ),
        sections=[
            (_anchor(case_id), case_id, by_id.get(case_id), of_case)
            for case_id, of_case in entries.items()
        ],
        environments=[
            (places[name][1:], name, versions_of(results)) for name, results in environments.items()
        ],
        **_head(run, now),
    )


def pages(run: RunResult, cases: Sequence[Case] = (), now: float | None = None) -> dict[str, str]:
    """Return the HTML of all pages by their path:

    ``index.html``, ``cases/CASE.html``, ``environments/NAME.html``.
    """
    by_id = {case.id: case for case in cases}
    cells = group_into_cells(run.results)
    environments = _by_environment(run)
    places = {name: f"environments/{file_name(name)}.html" for name in environments}

    def address(cell: Cell, _: int) -> str:
        return f"{case_page(cell.case_id)}#{place_of(cell.environment, cell.device)}"

    grid = _grid(cells, by_id, places, address, case_page)
    head = _head(run, now)
    written = {"index.html": render("run.html", grid=grid, sections=(), environments=(), **head)}
    below = {"nav": (("Overview", "../index.html"),), "made": head["made"]}
    by_case: dict[str, list[Cell]] = {}
    for cell in cells:
        by_case.setdefault(cell.case_id, []).append(cell)
    for case_id, of_case in by_case.items():
        case = by_id.get(case_id)
        written[case_page(case_id)] = render(
            "case.html",
            case_id=case_id,
            case=case,
            entries=[
                Entry(
                    cell,
                    case,
                    run.tool_version,
                    place_of(cell.environment, cell.device),
                    f"../{places[cell.environment]}",
                )
                for cell in sorted(of_case, key=lambda cell: cell.expected)
            ],
            record=None,
            **below,
        )
    for name, results in environments.items():
        written[places[name]] = render(
            "environment.html",
            name=name,
            grid=_grid(
                [cell for cell in cells if cell.environment == name],
                by_id,
                {name: ""},
                address=lambda cell, number: f"../{address(cell, number)}",
                of_case=lambda case_id: f"../{case_page(case_id)}",
            ),
            versions=versions_of(results),
            **below,
        )
    return written


def _anchor(case_id: str) -> str:
    return f"case-{file_name(case_id)}"


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


def _grid(
    cells: Sequence[Cell],
    by_id: Mapping[str, Case],
    places: Mapping[str, str],
    address: Address,
    of_case: Callable[[str], str],
) -> Grid:
    """Return the overview of the cells.

    ``places``: the addresses of the environments, in the order of the columns.
    """
    sparse = is_sparse(cells)
    rows: dict[str, dict[str, list[Mark]]] = {}
    for number, cell in enumerate(cells):
        name = shown(cell.environment)
        mark = Mark(
            verdict=cell.verdict.value,
            href=address(cell, number),
            expected=cell.expected,
            device=shown(cell.device),
            note=name if sparse else "",
        )
        row = rows.setdefault(cell.case_id, {})
        row.setdefault("" if sparse else cell.environment, []).append(mark)
    columns = [""] if sparse else list(places)
    return Grid(
        columns=[Column("Environments")]
        if sparse
        else [Column(shown(name), places[name]) for name in columns],
        rows=unexpected_first(
            Row(
                case_id,
                by_id.get(case_id),
                of_case(case_id),
                [marks.get(name, ()) for name in columns],
            )
            for case_id, marks in rows.items()
        ),
        sparse=sparse,
    )
