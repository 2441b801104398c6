"""The overview as values: rows of cases, columns of environments or releases, and what each cell
shows."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

from ...answers.audit.severity import Severity, severity
from ...cases.model import Case
from ...cases.verdict import Verdict
from ..symbols import SYMBOLS
from .rendering import shown

IN_RANGE = "IN_RANGE"
MEANINGS = {
    Verdict.REPRODUCED.value: "the documented failure, in an affected version",
    Verdict.FIXED.value: "passed, in a version that is not affected",
    Verdict.REGRESSED.value: "the failure, in a version that should not have it",
    Verdict.UNEXPECTEDLY_FIXED.value: "an affected version passed",
    Verdict.NOT_APPLICABLE.value: "this version or device lacks what the case needs",
    Verdict.INCONCLUSIVE.value: "proves nothing: another failure, or one of the harness",
    IN_RANGE: "without a clear result, but in the affected range",
}
SIGNS = {**{verdict.value: sign for verdict, sign in SYMBOLS.items()}, IN_RANGE: "◌"}
DEVICES = {
    "sim": "a simulated device: every part of vLLM is real but the model's arithmetic",
    "cpu": "the processor",
    "gpu": "a GPU",
    "none": "no device: a package is tested without vLLM",
}
MAX_COLUMNS_IN_WORDS = 8


@dataclasses.dataclass(frozen=True)
class Mark:
    """A verdict in a cell and where it leads.

    ``note``: what else the cell says, such as another environment or device.
    """

    verdict: str
    href: str
    expected: bool = True
    device: str = ""
    note: str = ""

    @property
    def sign(self) -> str:
        return SIGNS[self.verdict]

    @property
    def word(self) -> str:
        return "in range" if self.verdict == IN_RANGE else self.verdict.replace("_", " ")


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: its name, and the page of the environment or release (may be empty)."""

    name: str
    href: str = ""


@dataclasses.dataclass(frozen=True)
class Row:
    """A case: its description, and the marks in each column (one for each device)."""

    case: str
    title: str
    href: str
    family: str
    severity: str
    cells: tuple[tuple[Mark, ...], ...]

    @property
    def unexpected(self) -> bool:
        return any(not mark.expected for cell in self.cells for mark in cell)


@dataclasses.dataclass(frozen=True)
class Grid:
    """The table of an overview. ``sparse``: one column holds the marks of all environments."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    sparse: bool = False

    @property
    def dense(self) -> bool:
        """Whether cells show signs only, because there are many columns."""
        return len(self.columns) > MAX_COLUMNS_IN_WORDS

    @property
    def marks(self) -> list[Mark]:
        return [mark for row in self.rows for cell in row.cells for mark in cell]

    def counts(self) -> list[tuple[str, str, str, str, int]]:
        """Return verdict, sign, words, meaning and number of cells for each verdict that occurs."""
        counted = Counter(mark.verdict for mark in self.marks)
        return [
            (
                verdict,
                SIGNS[verdict],
                verdict.replace("_", " ").replace("IN RANGE", "in range"),
                meaning,
                counted[verdict],
            )
            for verdict, meaning in MEANINGS.items()
            if counted[verdict]
        ]

    def verdicts_of_runs(self) -> int:
        """Return the number of cells that a run decided."""
        return sum(mark.verdict != IN_RANGE for mark in self.marks)

    def devices(self) -> list[tuple[str, str, int]]:
        """Return name, meaning and number of cells of each device, the most frequent first.

        Only cells of the others name it.
        """
        counted = Counter(mark.device for mark in self.marks if mark.device)
        return [(name, DEVICES.get(name, ""), count) for name, count in counted.most_common()]

    def unexpected(self) -> list[tuple[str, str, str]]:
        """Return verdict, place and address of each cell that is not as expected."""
        return [
            (mark.word, f"{row.case} in {mark.note if self.sparse else column.name}", mark.href)
            for row in self.rows
            for column, cell in zip(self.columns, row.cells, strict=True)
            for mark in cell
            if not mark.expected
        ]

    def families(self) -> list[str]:
        return sorted({row.family for row in self.rows if row.family})

    def severities(self) -> list[str]:
        present = {row.severity for row in self.rows}
        return [grade.value for grade in Severity if grade.value in present]


def row_of(case_id: str, case: Case | None, href: str, cells: Iterable[Iterable[Mark]]) -> Row:
    """Return the row of a case. ``case`` is None if only its id is known."""
    return Row(
        case=shown(case_id),
        title=shown(case.title) if case else "",
        href=href,
        family=shown(case.family) if case else "",
        severity=severity(case).value if case else "",
        cells=tuple(map(tuple, cells)),
    )


def unexpected_first(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows with something unexpected, then the others, each in their order."""
    return tuple(sorted(rows, key=lambda row: not row.unexpected))
