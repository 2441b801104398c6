"""The record of the conformance suite as a page of Markdown: a row for each version and engine
generation, a column for each check."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pytest_vllm_regress.surveys.conformance import (
    ABSENT,
    FAILED,
    PASSED,
    SHOWN,
    CheckResult,
    KnownFailure,
    SuiteRun,
)
from pytest_vllm_regress.util.report import Markup, Table

from . import page as pages

NOT_RUN = "-"


def page(runs: Iterable[SuiteRun], known: Sequence[KnownFailure]) -> str:
    """Return the page (ASCII)."""
    ordered = sorted(runs, key=lambda ran: (ran.device != "sim", ran.vllm))
    sections = dict.fromkeys(cell.section for ran in ordered for cell in ran.cells)
    rows = [
        (
            *(ran.environment, ran.device),
            *(ran.versions.get(name, "") for name in ("vllm", *SHOWN)),
            *(Markup(ran.machine), ran.at),
        )
        for ran in ordered
    ]
    text = pages.render(
        "conformance",
        sections={section: _section(section, ordered, known) for section in sections},
        installed=Table(("environment", "device", "vllm", *SHOWN, "machine", "day"), rows),
        runs=ordered,
    )
    return text.encode("ascii", "replace").decode()


def _section(
    section: str, runs: Sequence[SuiteRun], known: Sequence[KnownFailure]
) -> tuple[Table, dict[str, int]]:
    """Return the table of a section, and its notes with their numbers."""
    notes: dict[str, int] = {}
    checks = list(dict.fromkeys(c.check for ran in runs for c in ran.cells if c.section == section))
    rows = []
    for ran in runs:
        for generation in ("V0", "V1"):
            cells = [cell for cell in ran.cells if cell.generation == generation]
            # A generation that this vLLM does not have gets no row.
            if all(cell.outcome == ABSENT for cell in cells):
                continue
            words = {c.check: _word(ran, c, known, notes) for c in cells if c.section == section}
            name = f"{ran.vllm} {generation} {ran.device}"
            rows.append((name, *(Markup(words.get(check, NOT_RUN)) for check in checks)))
    return Table(("vLLM", *map(Markup, checks)), rows), notes


def _word(
    ran: SuiteRun, cell: CheckResult, known: Sequence[KnownFailure], notes: dict[str, int]
) -> str:
    if cell.outcome == PASSED:
        return PASSED
    cause = (
        next((one.why for one in known if one.explains(ran, cell)), None)
        if cell.outcome == FAILED
        else None
    )
    note = cause or re.sub(r"\s+", " ", cell.reason.removeprefix("Skipped: "))[:300].replace(
        "|", "/"
    )
    note = note.replace(f"vLLM {ran.vllm}", "this vLLM")
    return f"{cell.outcome} [{notes.setdefault(note, len(notes) + 1)}]"
