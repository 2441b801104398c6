"""The verdict table: one line per case, and what is not as expected at the end, where it stays on
the screen.

Verdicts are shown as symbols with short words. If that is too wide, environments are numbered and
verdicts are symbols only. If that is too wide, too, or most of the table would be empty, each case
lists the environments in which it has a verdict.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.columns import Columns
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


SLOWEST = 5
"""Number of cells that are listed as the slowest of a longer run."""


def slowest_line(run: RunResult) -> str:
    """Return a line with the cells that took longest; empty if a run has few of them."""
    cells = [
        (sum(result.duration_s for result in cell.results), cell)
        for cell in group_into_cells(run.results)
    ]
    if len(cells) <= SLOWEST:
        return ""
    longest = sorted(cells, key=lambda pair: pair[0], reverse=True)[:SLOWEST]
    texts = (f"{seconds:.0f} s {cell.case_id} in {cell.environment}" for seconds, cell in longest)
    return one_line(f"slowest: {', '.join(texts)}")


def outcome(run: RunResult, cells: Sequence[Cell]) -> str:
    """Return in words how a run without unexpected cells went: what was not decided is no pass."""
    undecided = sum(cell.verdict is Verdict.NOT_APPLICABLE for cell in cells)
    if undecided == len(cells):
        return "nothing was decided"
    words = "as expected, as far as there are verdicts" if run.problems else "all as expected"
    if undecided:
        return f"{words.removeprefix('all ')}, but {undecided} of {len(cells)} not decided"
    return words


def _render(run: RunResult, width: int, *, ascii_only: bool) -> RenderableType:
    if not run.results:
        return Group(Text("no verdicts"), *_problems(run))
    cells = _Cells(run, ascii_only)
    return Group(*_body(cells, width), *_footer(run, cells))


class _Cells:
    """The cells of a table by case and column (environment and device), the oldest environment
    first.

    Cases with an unexpected cell come last; unexpected cells are numbered.
    """

    def __init__(self, run: RunResult, ascii_only: bool) -> None:
        self.all = group_into_cells(run.results)
        self._ascii_only = ascii_only
        self.unexpected = [cell for cell in self.all if not cell.expected]
        self._notes = {id(cell): f" [{n}]" for n, cell in enumerate(self.unexpected, start=1)}
        self.devices = list(dict.fromkeys(cell.device for cell in self.all))
        ages = {name: age for age, name in enumerate(environments_oldest_first(run.results))}
        by_age = sorted(self.all, key=lambda cell: ages[cell.environment])
        self.columns = list(dict.fromkeys(map(self.column, by_age)))
        last = {cell.case_id for cell in self.unexpected}
        ids = sorted(dict.fromkeys(cell.case_id for cell in self.all), key=last.__contains__)
        self.rows: dict[str, dict[str, Cell]] = {case_id: {} for case_id in ids}
        for cell in by_age:
            self.rows[cell.case_id][self.column(cell)] = cell

    def column(self, cell: Cell) -> str:
        """Return the environment, with the device if the run has several."""
        return cell.environment if len(self.devices) == 1 else f"{cell.environment} ({cell.device})"

    def sign(self, verdict: Verdict) -> str:
        return verdict.ascii_symbol if self._ascii_only else verdict.symbol

    def symbol(self, cell: Cell) -> Text:
        style = _STYLES.get(cell.verdict, _UNEXPECTED) if cell.expected else _UNEXPECTED
        return Text(self.sign(cell.verdict), style=style, no_wrap=True)

    def words(self, cell: Cell) -> Text:
        """Return the symbol, the short word and, for an unexpected cell, its number."""
        note = self._notes.get(id(cell), "")
        return self.symbol(cell).append(f" {cell.verdict.short_word}{note}")


def _body(cells: _Cells, width: int) -> list[RenderableType]:
    """Return the clearest layout that fits; none in numbers that would be mostly empty."""
    count = len(cells.columns)
    if count * _NARROWEST <= width:
        table = _matrix(cells, map(_folded, cells.columns), cells.words)
        if _natural_width(table) <= width:
            return [table]
    if count * 2 <= width and len(cells.all) > len(cells.rows) * count / 2:
        numbers = [str(number) for number in range(1, count + 1)]
        table = _matrix(cells, numbers, cells.symbol, spaces=1)
        if _natural_width(table) <= width:
            names = zip(numbers, map(_name, cells.columns), strict=True)
            return [table, Columns([Text(f"{number} {name}") for number, name in names])]
    return [_list(cells)]


def _matrix(
    cells: _Cells, headers: Iterable[str], verdict: Callable[[Cell], Text], spaces: int = 2
) -> Table:
    table = _table(spaces)
    for header in ("case", *headers):
        table.add_column(Text(header, no_wrap=True), no_wrap=header == "case")
    for case_id, by_column in cells.rows.items():
        row = (verdict(by_column[name]) if name in by_column else "" for name in cells.columns)
        table.add_row(Text(_name(case_id)), *row)
    return table


def _list(cells: _Cells) -> Table:
    """Return a table with the environments of each case, by verdict."""
    table = _table()
    for title in ("case", "verdicts"):
        table.add_column(title, overflow="fold")
    for case_id, by_column in cells.rows.items():
        entries: dict[str, Text] = {}
        for name, cell in by_column.items():
            words = cells.words(cell)
            entry = entries.setdefault(words.plain, words)
            entry.append(f"{' ' if entry is words else ', '}{_name(name)}", "")
        table.add_row(Text(_name(case_id)), Text("; ").join(entries.values()))
    return table


def _footer(run: RunResult, cells: _Cells) -> list[Text]:
    """Return the counts, which also explain the symbols, and the details.

    What is not as expected comes last.
    """
    absent = [
        cell for cell in cells.all if cell.expected and cell.verdict is Verdict.NOT_APPLICABLE
    ]
    # A cell in which no test ran proves nothing, so its reason is shown.
    details = [
        Text(f"not decided: {_place(cell)}: {one_line(excerpt(cell.not_run_because))}", "dim")
        for cell in absent
    ]
    details += _problems(run)
    details = [*_same_failures(cells), *details]
    if not cells.unexpected:
        return [Text(), *details, Text(f"{_counts(cells)}: {outcome(run, cells.all)}")]
    footer = [Text(), Text(_counts(cells)), *details]
    last = [Text(f"{len(cells.unexpected)} of {len(cells.all)} not as expected:", style="bold")]
    for number, cell in enumerate(cells.unexpected, start=1):
        footer += [Text(f"[{number}] {one_line(line)}") for line in cell.why()]
        if command := next((r.command for r in cell.results if not r.expected and r.command), ""):
            footer.append(Text(f"    repeat: {one_line(command)}"))
        line = f"[{number}] {cells.sign(cell.verdict)} {cell.verdict.value} {_place(cell)}"
        last.append(Text(line, style=_UNEXPECTED))
    return footer + last


def _same_failures(cells: _Cells) -> list[Text]:
    """Name the cells that show the documented failure of another case, whatever their verdict."""
    return [
        Text(f"same traceback or text as {', '.join(cell.same_as)}: {_place(cell)}", _UNEXPECTED)
        for cell in cells.all
        if cell.same_as
    ]


def _counts(cells: _Cells) -> str:
    counts = Counter(cell.verdict for cell in cells.all)
    total = ", ".join(
        f"{cells.sign(verdict)} {counts[verdict]} {verdict.value}"
        for verdict in Verdict
        if counts[verdict]
    )
    return f"{total} on {', '.join(map(one_line, cells.devices))}"


def _problems(run: RunResult) -> list[Text]:
    return [
        Text("problem: " + printable(problem).replace("\n", "\n    "), style=_UNEXPECTED)
        for problem in run.problems
    ]


def _place(cell: Cell) -> str:
    return one_line(f"{cell.case_id} in {cell.environment} on {cell.device}")


def _table(spaces: int = 2) -> Table:
    return Table(box=None, pad_edge=False, padding=(0, spaces, 0, 0), header_style="bold")


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
