"""What pages show, as values: the overview (rows of cases, columns of environments or releases),
and the cells with a text for an upstream report."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

from ...answers.audit.severity import Severity, severity
from ...cases.model import Case
from ...cases.proofs.proof import recorded_versions
from ...cases.results import Cell, TestResult
from ...cases.verdict import Verdict, excerpt
from ...util.text import markdown_block, markdown_inline
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
SIGNS = {**{verdict.value: verdict.symbol for verdict in Verdict}, IN_RANGE: "◌"}
DEVICES = {
    "sim": "a simulated device: every part of vLLM is real but the model's arithmetic",
    "cpu": "the processor",
    "gpu": "a GPU",
    "none": "no device: a package is tested without vLLM",
}
MAX_COLUMNS_IN_WORDS = 8
_FORM = """### Your current environment

{versions}

### \N{BUG} Describe the bug

{title}

Seen with {environment} on {device}: {verdict}

{symptom}

To reproduce, with pytest-vllm-regress {tool}:

{command}

{reference}
"""


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
        return _word(self.verdict)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: its name, and the page of the environment or release (may be empty)."""

    name: str
    href: str = ""


@dataclasses.dataclass(frozen=True)
class Row:
    """A case (None if only its id is known), and the marks in each column (one for each device)."""

    case_id: str
    case: Case | None
    href: str
    cells: Sequence[Sequence[Mark]]

    @property
    def unexpected(self) -> bool:
        return any(not mark.expected for cell in self.cells for mark in cell)


@dataclasses.dataclass(frozen=True)
class Grid:
    """The table of an overview. ``sparse``: one column holds the marks of all environments."""

    columns: Sequence[Column]
    rows: Sequence[Row]
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
            (verdict, SIGNS[verdict], _word(verdict), meaning, counted[verdict])
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
            (mark.word, f"{row.case_id} in {mark.note if self.sparse else column.name}", mark.href)
            for row in self.rows
            for column, cell in zip(self.columns, row.cells, strict=True)
            for mark in cell
            if not mark.expected
        ]

    def families(self) -> list[str]:
        return sorted({row.case.family for row in self.rows if row.case})

    def severities(self) -> list[str]:
        present = {severity(row.case) for row in self.rows if row.case}
        return [grade.value for grade in Severity if grade in present]


def unexpected_first(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with something unexpected, then the others, each in their order."""
    return sorted(rows, key=lambda row: not row.unexpected)


@dataclasses.dataclass(frozen=True)
class Entry:
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
        cell, case = self.cell, self.case
        worst = next(
            (result for result in cell.results if result.verdict is cell.verdict), cell.results[0]
        )
        versions = recorded_versions(worst.versions, case)
        listed = "\n".join(f"{shown(name)} {shown(version)}" for name, version in versions.items())
        reference = ""
        if case:
            addresses = ", ".join(f"<{url}>" for url in case.upstream)
            affected = markdown_inline(case.affected_text())
            reference = f"Known as {addresses}; affected as documented: {affected}."
        return _FORM.format(
            versions=markdown_block(listed or "unknown", "text"),
            title=markdown_inline(shown(case.title if case else cell.case_id)),
            environment=markdown_inline(shown(cell.environment)),
            device=DEVICES["sim"].replace(": ", " (", 1) + ")"
            if cell.device == "sim"
            else f"device {shown(cell.device)}",
            verdict=f"{cell.verdict.value}: {markdown_inline(shown(excerpt(worst.reason, 400)))}",
            symptom=markdown_block(shown(worst.symptom or worst.reason, 2000), "text"),
            tool=markdown_inline(shown(self.tool)),
            command=markdown_block(shown(worst.command, 2000), "sh"),
            reference=reference,
        )


def versions_of(results: Iterable[TestResult]) -> list[tuple[str, str]]:
    """Return the distributions of an environment, by name."""
    return sorted({name: v for result in results for name, v in result.versions.items()}.items())


def _word(verdict: str) -> str:
    return "in range" if verdict == IN_RANGE else verdict.replace("_", " ")
