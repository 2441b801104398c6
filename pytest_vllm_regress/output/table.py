"""The verdict table: one line per case, and what is not as expected at the end, where it stays on
the screen.

Verdicts are shown as symbols with short words. If that is too wide, environments are numbered and
verdicts are symbols only. If that is too wide, too, or most of the table would be empty, each case
lists the environments in which it has a verdict.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..cases.results import Cell, RunResult, TestResult, environments_oldest_first, group_into_cells
from ..cases.verdict import Verdict, excerpt
from ..util.text import one_line, printable

_STYLES = {Verdict.REPRODUCED: "yellow", Verdict.FIXED: "green", Verdict.NOT_APPLICABLE: "dim"}
_UNEXPECTED = "bold red"
_NARROWEST = 7
"""Minimum width of a column of verdicts with words, in characters."""
_HEADER = 18
"""Greatest width of one line of an environment's name above a column."""


def print_table(run: RunResult, console: Console) -> None:
    """Print the table, with colours on a terminal."""
    try:
        "".join(verdict.symbol for verdict in Verdict).encode(console.encoding)
        ascii_only = False
    except (UnicodeEncodeError, LookupError):
        ascii_only = True
    if console.is_terminal:
        console.print(_render(run, console.width, ascii_only=ascii_only))
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
    console = Console(
        file=stream, width=width, color_system=None, force_terminal=False, legacy_windows=False
    )
    console.print(_render(run, width, ascii_only=ascii_only))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def observation_lines(results: Iterable[TestResult]) -> Iterator[str]:
    """Yield what each test saw: its verdict, then replies or failure, control leg, and the
    mechanisms that were or were not at work."""
    for result in results:
        yield one_line(
            f"{result.test} in {result.environment} on {result.device}: {result.verdict.value}, {result.duration_s:.1f} s"
        )
        observed = result.observation
        if observed is not None:
            leg = f"; its control leg {result.control}" if result.control else ""
            yield one_line(
                f"    {observed.kind.value} in phase {observed.phase}: {excerpt(observed.summary)}{leg}"
            )
            for mechanism in observed.at_work:
                yield one_line(f"    {'' if mechanism.held else 'NOT '}at work: {mechanism.what}")


def _render(run: RunResult, width: int, *, ascii_only: bool) -> RenderableType:
    all_cells = group_into_cells(run.results)
    if not all_cells:
        return Group(Text("no verdicts"), *_problems(run))
    cells = _Cells(all_cells, ascii_only)
    table = next(
        (table for table in _tables(cells, width) if _natural_width(table[0]) <= width), None
    )
    return Group(*(table or _list(cells)), *_footer(run, cells))


_Column = tuple[str, str]
"""Environment and device."""


class _Cells:
    """The cells of a table by case and column, the oldest environment first.

    Cases with an unexpected cell come last; unexpected cells are numbered.
    """

    def __init__(self, cells: tuple[Cell, ...], ascii_only: bool) -> None:
        self.all = cells
        self._ascii_only = ascii_only
        self.unexpected = [cell for cell in cells if not cell.expected]
        self._notes = {id(cell): f" [{n}]" for n, cell in enumerate(self.unexpected, start=1)}
        self.devices = list(dict.fromkeys(cell.device for cell in cells))
        places = environments_oldest_first(result for cell in cells for result in cell.results)
        by_age = sorted(cells, key=lambda cell: places.index(cell.environment))
        self.columns = list(dict.fromkeys((cell.environment, cell.device) for cell in by_age))
        last = {cell.case_id for cell in self.unexpected}
        ids = dict.fromkeys(cell.case_id for cell in cells)
        self.rows: dict[str, dict[_Column, Cell]] = {
            case_id: {} for case_id in sorted(ids, key=last.__contains__)
        }
        for cell in by_age:
            self.rows[cell.case_id][cell.environment, cell.device] = cell

    def sign(self, verdict: Verdict) -> str:
        return verdict.ascii_symbol if self._ascii_only else verdict.symbol

    def symbol(self, cell: Cell) -> Text:
        style = _STYLES.get(cell.verdict, _UNEXPECTED) if cell.expected else _UNEXPECTED
        return Text(self.sign(cell.verdict), style=style, no_wrap=True)

    def words(self, cell: Cell) -> Text:
        """Return the symbol, the short word and, for an unexpected cell, its number."""
        note = self._notes.get(id(cell), "")
        return self.symbol(cell).append(f" {cell.verdict.short_word}{note}")

    def name(self, column: _Column) -> str:
        """Return the environment, with the device if the run has several."""
        return column[0] if len(self.devices) == 1 else f"{column[0]} ({column[1]})"


def _tables(cells: _Cells, width: int) -> Iterator[tuple[Table, ...]]:
    """Yield the layouts with a column for each environment that may fit, the clearest first; none
    in numbers that would be mostly empty."""
    columns = len(cells.columns)
    if columns * _NARROWEST <= width:
        yield (
            _matrix(cells, [_folded(cells.name(column)) for column in cells.columns], cells.words),
        )
    if columns * 2 <= width and len(cells.all) > len(cells.rows) * columns / 2:
        numbers = [str(number) for number in range(1, columns + 1)]
        yield _matrix(cells, numbers, cells.symbol, spaces=1), _legend(cells, numbers, width)


def _matrix(
    cells: _Cells, headers: list[str], verdict: Callable[[Cell], Text], spaces: int = 2
) -> Table:
    table = _table(spaces)
    table.add_column("case", no_wrap=True)
    for header in headers:
        table.add_column(Text(header, no_wrap=True))
    for case_id, by_column in cells.rows.items():
        row = (
            verdict(by_column[column]) if column in by_column else Text()
            for column in cells.columns
        )
        table.add_row(_text(case_id), *row)
    return table


def _legend(cells: _Cells, numbers: list[str], width: int) -> Table:
    """Return the environments by number, as many beside each other as fit into ``width`` columns,
    at most 80."""
    names = [_text(cells.name(column)) for column in cells.columns]
    beside = max(1, min(80, width) // (max(map(len, names)) + 5))
    table = Table.grid(padding=(0, 1))
    entries = [
        (Text(number, justify="right"), name) for number, name in zip(numbers, names, strict=True)
    ]
    for start in range(0, len(entries), beside):
        table.add_row(*(text for entry in entries[start : start + beside] for text in entry))
    return table


def _list(cells: _Cells) -> tuple[Table]:
    """Return a table with the environments of each case, by verdict."""
    table = _table()
    table.add_column("case", overflow="fold")
    table.add_column("verdicts", overflow="fold")
    for case_id, by_column in cells.rows.items():
        entries: dict[str, Text] = {}
        for column, cell in by_column.items():
            words = cells.words(cell)
            entry = entries.setdefault(words.plain, words)
            entry.append(f"{' ' if entry is words else ', '}{_name(cells.name(column))}", "")
        table.add_row(_text(case_id), Text("; ").join(entries.values()))
    return (table,)


def _footer(run: RunResult, cells: _Cells) -> list[RenderableType]:
    """Return the counts, which also explain the symbols, and the details.

    What is not as expected comes last.
    """
    absent = [
        cell for cell in cells.all if cell.expected and cell.verdict is Verdict.NOT_APPLICABLE
    ]
    details = [*_absent(absent), *_problems(run)]
    if not cells.unexpected:
        note = f", {len(absent)} of them did not run" if absent else ""
        outcome = "as expected, as far as there are verdicts" if run.problems else "all as expected"
        return [Text(), *details, Text(f"{_counts(cells)}: {outcome}{note}")]
    footer: list[RenderableType] = [Text(), Text(_counts(cells)), *details]
    for number, cell in enumerate(cells.unexpected, start=1):
        footer += [Text(f"[{number}] {one_line(line)}") for line in cell.why()]
        if command := next((r.command for r in cell.results if not r.expected and r.command), ""):
            footer.append(Text(f"    repeat: {one_line(command)}"))
    footer.append(
        Text(f"{len(cells.unexpected)} of {len(cells.all)} not as expected:", style="bold")
    )
    for number, cell in enumerate(cells.unexpected, start=1):
        line = f"[{number}] {cells.sign(cell.verdict)} {cell.verdict.value} {_place(cell)}"
        footer.append(Text(line, style=_UNEXPECTED))
    return footer


def _counts(cells: _Cells) -> str:
    counts = {verdict: sum(cell.verdict is verdict for cell in cells.all) for verdict in Verdict}
    total = ", ".join(
        f"{cells.sign(verdict)} {count} {verdict.value}"
        for verdict, count in counts.items()
        if count
    )
    return f"{total} on {', '.join(map(one_line, cells.devices))}"


def _absent(absent_cells: list[Cell]) -> list[Text]:
    """Return a line for each cell in which no test ran, with the reason: it proves nothing."""
    return [
        Text(f"not run: {_place(cell)}: {one_line(excerpt(cell.results[0].reason, 200))}", "dim")
        for cell in absent_cells
    ]


def _problems(run: RunResult) -> list[Text]:
    return [
        Text("problem: " + printable(problem).replace("\n", "\n    "), style=_UNEXPECTED)
        for problem in run.problems
    ]


def _place(cell: Cell) -> str:
    return one_line(f"{cell.case_id} in {cell.environment} on {cell.device}")


def _table(spaces: int = 2) -> Table:
    return Table(box=None, pad_edge=False, padding=(0, spaces, 0, 0), header_style="bold")


def _text(name: str) -> Text:
    """Return a name as rich text: rich interprets markup in plain strings."""
    return Text(_name(name))


def _name(name: str) -> str:
    """Return a name for a table's cell, which may be wrapped anywhere: so that no line of it
    becomes a command of GitHub Actions."""
    return one_line(name).replace("::", ":\\x3a")


def _natural_width(table: Table) -> int:
    return Console(width=10_000).measure(table).maximum


def _folded(name: str) -> str:
    """Split ``name`` into lines of at most ``_HEADER`` characters, after a hyphen or slash where
    possible."""
    pieces = [""]
    for part in _name(name).replace("/", "/\0").replace("-", "-\0").split("\0"):
        if pieces[-1] and len(pieces[-1]) + len(part) > _HEADER:
            pieces.append("")
        pieces[-1] += part
    return "\n".join(
        piece[at : at + _HEADER] for piece in pieces for at in range(0, len(piece), _HEADER)
    )
