"""What pages show, as values: the overview (rows of cases, columns of environments or releases),
and the cells with a text for an upstream report. What a verdict is called, and what it means, is in
``data/page/parts.html``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...cases.model import Case
from ...cases.proofs.proof import recorded_versions
from ...cases.results import Cell
from ...cases.verdict import Verdict, excerpt
from ...util.text import render_text
from .rendering import shown

IN_RANGE = "IN_RANGE"
"""What a mark shows in place of a verdict where only the affected range is known."""


@dataclass(frozen=True)
class Mark:
    """A verdict in a cell and where it leads.

    ``note``: the environment, where one column holds the marks of all.
    """

    verdict: str
    href: str
    expected: bool = True
    device: str = ""
    note: str = ""


@dataclass(frozen=True)
class Column:
    """A column: its name, and the page of the environment or release (may be empty)."""

    name: str
    href: str = ""


@dataclass(frozen=True)
class Row:
    """A case (None if only its id is known), and the marks in each column (one for each device)."""

    case_id: str
    case: Case | None
    href: str
    cells: Sequence[Sequence[Mark]]

    @property
    def unexpected(self) -> bool:
        return any(not mark.expected for cell in self.cells for mark in cell)


@dataclass(frozen=True)
class Grid:
    """The table of an overview."""

    columns: Sequence[Column]
    rows: Sequence[Row]

    @classmethod
    def unexpected_first(cls, columns: Sequence[Column], rows: Iterable[Row]) -> Grid:
        """Return the table that begins with the rows with something unexpected."""
        return cls(columns, sorted(rows, key=lambda row: not row.unexpected))

    @property
    def marks(self) -> list[Mark]:
        return [mark for row in self.rows for cell in row.cells for mark in cell]

    def counted(self, attribute: str) -> dict[str, int]:
        """Return the number of cells by verdict or device, the most frequent first."""
        values = filter(None, (getattr(mark, attribute) for mark in self.marks))
        return dict(Counter(values).most_common())

    def verdicts_of_runs(self) -> int:
        """Return the number of cells that a run decided."""
        return sum(mark.verdict != IN_RANGE for mark in self.marks)

    def undecided(self) -> int:
        """Return the number of cells in which no test could show the failure."""
        return sum(mark.verdict == Verdict.NOT_APPLICABLE.value for mark in self.marks)

    def unexpected(self) -> list[tuple[str, str, str]]:
        """Return verdict, place and address of each cell that is not as expected."""
        return [
            (mark.verdict, f"{row.case_id} in {mark.note or column.name}", mark.href)
            for row in self.rows
            for column, cell in zip(self.columns, row.cells, strict=True)
            for mark in cell
            if not mark.expected
        ]


@dataclass(frozen=True)
class ShownCell:
    """A cell of the table with its results, and its place on the page."""

    cell: Cell
    case: Case | None
    tool: str
    """Version of the plugin that ran the tests."""
    anchor: str
    environment_href: str = ""

    @property
    def issue(self) -> str:
        """The text of an upstream report, in the sections of vLLM's bug form, with the versions of
        the packages that matter."""
        cell = self.cell
        worst = next((r for r in cell.results if r.verdict is cell.verdict), cell.results[0])
        return render_text(
            "upstream.md.txt",
            cell=cell,
            case=self.case,
            tool=self.tool,
            worst=worst,
            versions=recorded_versions(worst.versions, self.case),
            shown=shown,
            excerpt=excerpt,
        )
