"""The verdict table: cases by environments, with the reasons for every unexpected cell below."""

from __future__ import annotations

import dataclasses
import io

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..cases.cells import Cell, cells_by_place, group_into_cells
from ..cases.results import RunResult
from ..cases.verdict import Verdict, excerpt
from ..util.text import one_line, printable
from .symbols import ASCII_SYMBOLS, SYMBOLS

_STYLES = {Verdict.REPRODUCED: "yellow", Verdict.FIXED: "green", Verdict.NOT_APPLICABLE: "dim"}
_UNEXPECTED = "bold red"
_NARROWEST = 7
"""Minimum width of a column of verdicts, in characters."""


def print_table(run: RunResult, console: Console) -> None:
    """Print the table: with frame and colours on a terminal, as plain text elsewhere."""
    ascii_only = _ascii_only(console.encoding)
    if console.is_terminal:
        console.print(_render(run, console.width, plain=False, ascii_only=ascii_only))
    else:
        for line in lines(run, console.width, ascii_only=ascii_only):
            console.print(Text(line), soft_wrap=True)


def print_to_console(run: RunResult) -> None:
    """Print the table to standard output, after an empty line."""
    print(flush=True)
    print_table(run, Console())


def lines(run: RunResult, width: int = 80, *, ascii_only: bool = False) -> list[str]:
    """Return the table as lines of plain text, at most ``width`` characters wide."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None, force_terminal=False, legacy_windows=False)
    console.print(_render(run, width, plain=True, ascii_only=ascii_only))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def _render(run: RunResult, width: int, *, plain: bool, ascii_only: bool) -> RenderableType:
    all_cells = group_into_cells(run.results)
    if not all_cells:
        return Group(Text("no verdicts"), *_problems(run))
    notes = {_key(cell): number for number, cell in enumerate((c for c in all_cells if not c.expected), start=1)}
    style = _Style(plain, ascii_only, notes)
    narrow = _NARROWEST * len({cell.environment for cell in all_cells}) <= width
    table = _matrix(all_cells, style) if narrow else None
    if table is None or _natural_width(table) > width:
        table = _list(all_cells, style)
    return Group(table, *_footer(all_cells, style), *_problems(run))


@dataclasses.dataclass(frozen=True)
class _Style:
    plain: bool
    ascii_only: bool
    notes: dict[tuple[str, str, str], int]

    def table(self) -> Table:
        frame = None if self.plain else box.ASCII if self.ascii_only else box.ROUNDED
        return Table(
            box=frame, pad_edge=not self.plain, show_lines=not self.plain, header_style="" if self.plain else "bold"
        )

    def verdict(self, cell: Cell) -> Text:
        symbol = (ASCII_SYMBOLS if self.ascii_only else SYMBOLS)[cell.verdict]
        note = f" [{self.notes[_key(cell)]}]" if _key(cell) in self.notes else ""
        style = _STYLES.get(cell.verdict, _UNEXPECTED) if cell.expected else _UNEXPECTED
        return Text(f"{symbol} {cell.verdict.value}{note}", style=style, no_wrap=True)


def _matrix(all_cells: tuple[Cell, ...], style: _Style) -> Table:
    environments = list(dict.fromkeys(cell.environment for cell in all_cells))
    by_place = cells_by_place(all_cells)
    table = style.table()
    table.add_column("case", no_wrap=True)
    for environment in environments:
        table.add_column(Text("\n".join(_pieces(one_line(environment), 18)), no_wrap=True))
    for case_id in dict.fromkeys(cell.case_id for cell in all_cells):
        row: list[RenderableType] = [*_texts(case_id)]
        for environment in environments:
            cells = by_place.get((case_id, environment), [])
            row.append(Text("\n").join(style.verdict(c).append(f"\n  on {c.device}", "dim") for c in cells))
        table.add_row(*row)
    return table


def _list(all_cells: tuple[Cell, ...], style: _Style) -> Table:
    table = style.table()
    table.add_column("case", overflow="fold")
    table.add_column("environment", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    table.add_column("device", no_wrap=True)
    order = {case_id: number for number, case_id in enumerate(dict.fromkeys(cell.case_id for cell in all_cells))}
    for cell in sorted(all_cells, key=lambda cell: order[cell.case_id]):
        table.add_row(*_texts(cell.case_id, cell.environment), style.verdict(cell), *_texts(cell.device))
    return table


def _footer(all_cells: tuple[Cell, ...], style: _Style) -> list[Text]:
    counts = [f"{sum(c.verdict is verdict for c in all_cells)} {verdict.value}" for verdict in Verdict]
    total = ", ".join(text for text in counts if not text.startswith("0 "))
    absent = [cell for cell in all_cells if cell.expected and cell.verdict is Verdict.NOT_APPLICABLE]
    if not style.notes:
        note = f", {len(absent)} of them did not run" if absent else ""
        return [Text(f"\n{total}: all as expected{note}"), *_absent(absent)]
    footer = [Text(f"\n{total}: {len(style.notes)} not as expected", style="bold")]
    for cell in all_cells:
        if _key(cell) in style.notes:
            footer.append(Text(f"[{style.notes[_key(cell)]}] {_place(cell)}", style=_UNEXPECTED))
            footer += [Text(f"    {one_line(line)}") for line in cell.why()]
            command = next((r.command for r in cell.results if not r.expected and r.command), "")
            if command:
                footer.append(Text(f"    repeat: {one_line(command)}"))
    return [*footer, *_absent(absent)]


def _absent(absent_cells: list[Cell]) -> list[Text]:
    """Return a line for each cell in which no test ran, with the reason: it proves nothing."""
    return [
        Text(f"    not run: {_place(cell)}: {one_line(excerpt(cell.results[0].reason, 200))}", "dim")
        for cell in absent_cells
    ]


def _problems(run: RunResult) -> list[Text]:
    return [
        Text("problem: " + printable(problem).replace("\n", "\n    "), style=_UNEXPECTED) for problem in run.problems
    ]


def _place(cell: Cell) -> str:
    return one_line(f"{cell.case_id} in {cell.environment} on {cell.device}")


def _key(cell: Cell) -> tuple[str, str, str]:
    return (cell.case_id, cell.environment, cell.device)


def _texts(*names: str) -> list[Text]:
    """Return names as rich texts: rich interprets markup in plain strings."""
    return [Text(one_line(name)) for name in names]


def _natural_width(table: Table) -> int:
    return Console(width=10_000).measure(table).maximum


def _pieces(name: str, width: int) -> list[str]:
    """Split ``name`` into pieces of at most ``width`` characters, after a hyphen or slash where possible."""
    pieces = [""]
    for part in name.replace("/", "/\0").replace("-", "-\0").split("\0"):
        if pieces[-1] and len(pieces[-1]) + len(part) > width:
            pieces.append("")
        pieces[-1] += part
    return [piece[at : at + width] for piece in pieces for at in range(0, len(piece), width)]


def _ascii_only(encoding: str) -> bool:
    try:
        "".join(SYMBOLS.values()).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return True
    return False
