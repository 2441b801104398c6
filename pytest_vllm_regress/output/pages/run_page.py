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
from .evidence import entry_of, facts_of, versions_of
from .folder import write_folder
from .grid import Column, Grid, Mark, row_of, unexpected_first
from .rendering import MAX_TEXT, date_text, file_name, render, shown

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
    environments = environments_oldest_first(run.results)
    places = {name: f"#environment-{number}" for number, name in enumerate(environments)}
    entries: dict[str, list[object]] = {}
    for number, cell in enumerate(cells):
        entry = entry_of(
            cell,
            by_id.get(cell.case_id),
            run.tool_version,
            f"evidence-{number}",
            places[cell.environment],
        )
        entries.setdefault(cell.case_id, []).append(entry)
    grid = _grid(
        cells,
        by_id,
        places,
        lambda _, number: f"#evidence-{number}",
        lambda case_id: f"#{_anchor(case_id)}",
    )
    return render(
        "run.html",
        grid=grid,
        sections=[
            (_anchor(case_id), facts_of(case_id, by_id.get(case_id)), entries[case_id])
            for case_id in entries
        ],
        environments=[
            (places[name][1:], shown(name), versions_of(results))
            for name, results in _by_environment(run, environments)
        ],
        **_head(run, now),
    )


def pages(run: RunResult, cases: Sequence[Case] = (), now: float | None = None) -> dict[str, str]:
    """Return the HTML of all pages by their path:

    ``index.html``, ``cases/CASE.html``, ``environments/NAME.html``.
    """
    by_id = {case.id: case for case in cases}
    cells = group_into_cells(run.results)
    environments = environments_oldest_first(run.results)
    places = {name: f"environments/{file_name(name)}.html" for name in environments}

    def address(cell: Cell, _: int) -> str:
        return f"{_case_page(cell.case_id)}#{place_of(cell.environment, cell.device)}"

    grid = _grid(cells, by_id, places, address, _case_page)
    head = _head(run, now)
    written = {"index.html": render("run.html", grid=grid, sections=(), environments=(), **head)}
    nav = (("Overview", "../index.html"),)
    by_case: dict[str, list[Cell]] = {}
    for cell in cells:
        by_case.setdefault(cell.case_id, []).append(cell)
    for case_id, of_case in by_case.items():
        entries = [
            entry_of(
                cell,
                by_id.get(case_id),
                run.tool_version,
                place_of(cell.environment, cell.device),
                f"../{places[cell.environment]}",
            )
            for cell in of_case
        ]
        written[_case_page(case_id)] = render(
            "case.html",
            facts=facts_of(case_id, by_id.get(case_id)),
            entries=sorted(entries, key=lambda entry: entry.expected),
            record=None,
            nav=nav,
            made=head["made"],
        )
    for name, results in _by_environment(run, environments):
        here = [cell for cell in cells if cell.environment == name]
        rows = _grid(
            here,
            by_id,
            {name: ""},
            lambda cell, number: f"../{address(cell, number)}",
            lambda case_id: f"../{_case_page(case_id)}",
        )
        written[places[name]] = render(
            "environment.html",
            name=shown(name),
            grid=rows,
            versions=versions_of(results),
            nav=nav,
            made=head["made"],
        )
    return written


def place_of(environment: str, device: str) -> str:
    """Return the anchor of an environment and a device on a case's page."""
    return file_name(f"{environment}.{device}".lower())


def _anchor(case_id: str) -> str:
    return f"case-{file_name(case_id)}"


def _case_page(case_id: str) -> str:
    return f"cases/{file_name(case_id)}.html"


def _head(run: RunResult, now: float | None) -> dict[str, object]:
    return {
        "problems": [shown(problem, MAX_TEXT) for problem in run.problems],
        "made": f"{date_text(now)} by pytest-vllm-regress {shown(run.tool_version)}",
    }


def _by_environment(
    run: RunResult, environments: Sequence[str]
) -> list[tuple[str, list[TestResult]]]:
    results: dict[str, list[TestResult]] = {name: [] for name in environments}
    for result in run.results:
        results[result.environment].append(result)
    return list(results.items())


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
        note = shown(cell.environment) if sparse else ""
        mark = Mark(
            cell.verdict.value, address(cell, number), cell.expected, shown(cell.device), note
        )
        rows.setdefault(cell.case_id, {}).setdefault("" if sparse else cell.environment, []).append(
            mark
        )
    columns = [""] if sparse else list(places)
    return Grid(
        columns=(Column("Environments"),)
        if sparse
        else tuple(Column(shown(name), places[name]) for name in columns),
        rows=unexpected_first(
            [
                row_of(
                    case_id,
                    by_id.get(case_id),
                    of_case(case_id),
                    [marks.get(name, ()) for name in columns],
                )
                for case_id, marks in rows.items()
            ]
        ),
        sparse=sparse,
    )
