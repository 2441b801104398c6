"""The formats that results are shown and written in, and the files that ``--out`` names.

Texts from result files are not trusted: they are truncated; in Markdown anything but plain words is
shown as code, in XML non-printable characters are escaped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..cases.model import Case
from ..cases.results import (
    MAX_SHOWN_REASON,
    Cell,
    RunResult,
    TestResult,
    cells_by_place,
    environments_oldest_first,
    group_into_cells,
    is_sparse,
)
from ..cases.verdict import excerpt
from ..errors import UsageError
from ..util.files import check_distinct, check_writable, is_special, write_atomically
from ..util.paths import writable_root
from ..util.report import Markup, Report, Section, Table, to_markdown
from ..util.text import markdown_inline, printable, render_text
from .table import outcome

Say = Callable[[str], None]
Known = Callable[[], Sequence[Case]]
"""Loads the cases, for titles, ranges and links. Only pages need them."""
DOCUMENTS = {".html": ("html", "page"), ".md": ("markdown", "summary"), ".xml": ("junit", "JUnit")}
"""Format by the ending of a file, and what the file is called. Any other ending is JSON."""


def rendered(format: str, run: RunResult, known: Known) -> str:
    """Return the results as ``html``, ``markdown``, ``junit`` or ``json``."""
    if format == "html":
        from .pages.run_page import page

        return page(run, known())
    if format == "json":
        return json.dumps(run.to_json(), indent=2)
    return markdown_text(run) if format == "markdown" else junit_xml(run)


@dataclass(frozen=True)
class OutputFiles:
    """What ``--out`` names: ``documents`` for people and CI systems, and at most one place for the
    ``results``, a file ending in .json or a folder."""

    results: Path | None = None
    documents: tuple[Path, ...] = ()

    @classmethod
    def of(cls, paths: Iterable[Path] | None, inputs: Sequence[Path] = ()) -> OutputFiles:
        """Raise ``UsageError`` if one of them is an input or another output, or if a file cannot be
        written: before a run, which may take hours."""
        given = list(paths or ())
        if Path("-") in given:
            raise UsageError("--out -: standard output has what --format names; leave --out out")
        check_distinct(given, list(inputs))
        for path in given:
            _check_ending(path)
        documents = tuple(path for path in given if path.suffix in DOCUMENTS)
        results = [path for path in given if path not in documents]
        if len(results) > 1:
            raise UsageError(
                f"--out: {' and '.join(map(str, results))} would both get the results as JSON. "
                f"Name one of them, and others that end in {', '.join(DOCUMENTS)}"
            )
        for path in documents:
            check_writable(path)
        return cls(results[0] if results else None, documents)

    def check_results(self) -> OutputFiles:
        """Return this. Raises ``UsageError`` if the results cannot be written."""
        from ..runner.run import check_destination  # for Linux only, like all runs

        check_destination(self.results)
        return self

    def save(self, run: RunResult, known: Known, say: Say) -> None:
        """Write the results, with a copy in the cache, and the documents."""
        from ..runner.run import save_results

        written = save_results(run, self.results, writable_root() / "results", say)
        if written is not None:
            say(f"results: {written}")
        self.write_documents(run, known, say)

    def write_documents(self, run: RunResult, known: Known, say: Say) -> None:
        for path in self.documents:
            format, name = DOCUMENTS[path.suffix]
            write_atomically(path, rendered(format, run, known))
            say(f"{name}: {path}")

    def rescue(self, say: Say) -> Callable[[RunResult], None]:
        """Return what saves the results so far of a run that fails."""
        from ..runner.run import rescue_to

        return rescue_to(self.results, writable_root() / "results", say)


def _check_ending(path: Path) -> None:
    """Refuse a misspelt ending, which would become a folder."""
    known = ("", ".json", *DOCUMENTS)
    # v0.8.4 is a fine name for a folder.
    if path.suffix in known or not path.suffix[1:].isalpha() or path.is_dir() or is_special(path):
        return
    raise UsageError(
        f"--out {path}: a file ends in .json, {', '.join(DOCUMENTS)}; a new folder has no ending"
    )


SIMULATED = "sim: a simulated device; every part of vLLM is real but the model's arithmetic."


def markdown_text(run: RunResult) -> str:
    """Return GitHub-flavoured Markdown: a table of cases by environment, then the reasons for every
    unexpected cell."""
    cells = group_into_cells(run.results)
    if not cells:
        return "No verdicts.\n"
    unexpected = [cell for cell in cells if not cell.expected]
    words = f"{outcome(run, cells).capitalize()}."
    if unexpected:
        words = f"{len(unexpected)} of {len(cells)} cells are not as expected."
    parts: list[str | Table] = [_table(run, cells), Markup(words)]
    if any(cell.device == "sim" for cell in cells):
        parts.append(Markup(SIMULATED))
    sections = [Section(parts=parts)]
    for cell in unexpected:
        place = f"{markdown_inline(cell.case_id)} in {markdown_inline(cell.environment)}"
        sections.append(Section(parts=[Markup(f"**{place} on {cell.device}**"), tuple(cell.why())]))
    problems = [markdown_inline(excerpt(problem, MAX_SHOWN_REASON)) for problem in run.problems]
    notes = [Markup(f"Problem: {problem}") for problem in problems]
    return to_markdown(Report(sections=sections, notes=notes))


def _table(run: RunResult, cells: tuple[Cell, ...]) -> Table:
    """Return a row for each case, or, where that would be mostly empty, for each cell."""
    if is_sparse(cells):
        rows = [(cell.case_id, cell.environment, _verdict(cell)) for cell in cells]
        return Table(("case", "environment", "verdict"), rows)
    by_place, environments = cells_by_place(cells), environments_oldest_first(run.results)
    return Table(
        ("case", *environments),
        [
            (
                case_id,
                *(
                    Markup("; ".join(map(_verdict, by_place.get((case_id, name), ()))))
                    for name in environments
                ),
            )
            for case_id in dict.fromkeys(cell.case_id for cell in cells)
        ],
    )


def _verdict(cell: Cell) -> Markup:
    words = f"{cell.verdict.symbol} {cell.verdict.value}"
    return Markup(f"{words if cell.expected else f'**{words}**'} ({cell.device})")


def junit_xml(run: RunResult) -> str:
    """Return JUnit XML with a suite for each environment.

    An unexpected verdict is a failure. REPRODUCED and NOT_APPLICABLE count as skipped, as in
    pytest, and so does what passed but decides nothing.
    """
    environments: dict[str, list[TestResult]] = {}
    for result in run.results:
        environments.setdefault(result.environment, []).append(result)
    # All printable characters are valid in XML.
    return render_text(
        "junit.xml.txt",
        environments=environments,
        printable=printable,
        excerpt=excerpt,
        limit=MAX_SHOWN_REASON,
    )
