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
from pytest_vllm_regress.util.report import Markup, markdown_table

NOT_RUN = "-"


def page(runs: Iterable[SuiteRun], known: Sequence[KnownFailure]) -> str:
    """Return the page (ASCII)."""
    ordered = sorted(runs, key=lambda ran: (ran.device != "sim", ran.vllm))
    lines = [
        "# Conformance",
        "",
        "<!-- written by `python -m tools.docs`; do not edit -->",
        "",
        "Which features work on which vLLM, according to the conformance suite: a row for each version and engine generation.",
        "`ok`: the check passed. `n/a`: this vLLM or device does not support it; the note says why. `FAIL`: it fails; the note says what is known.",
        f"`{NOT_RUN}`: the check has not run there yet.",
        "",
        "[Support a new vLLM](../how-to/support-a-new-vllm.md) says how to add a row.",
    ]
    for section in dict.fromkeys(cell.section for ran in ordered for cell in ran.cells):
        lines += ["", f"## {section}", "", *_section(section, ordered, known)]
    lines += [
        "",
        "## What was installed",
        "",
    ]
    rows = [
        (
            *(ran.environment, ran.device),
            *(ran.versions.get(name, "") for name in ("vllm", *SHOWN)),
            *(Markup(ran.machine), ran.at),
        )
        for ran in ordered
    ]
    lines += markdown_table(("environment", "device", "vllm", *SHOWN, "machine", "day"), rows)
    for ran in ordered:
        if ran.gpu:
            facts = ", ".join(
                f"{name.replace('_', ' ')} {value}" for name, value in ran.gpu.items()
            )
            lines += ["", f"{ran.environment} on {ran.device}: {facts}."]
    return "\n".join([*lines, ""]).encode("ascii", "replace").decode()


def _section(section: str, runs: Sequence[SuiteRun], known: Sequence[KnownFailure]) -> list[str]:
    rows = {
        (ran.name, generation): ran
        for ran in runs
        for generation in ("V0", "V1")
        if _exists(ran, generation)
    }
    cells = {
        (ran.name, c.generation, c.check): c
        for ran in runs
        for c in ran.cells
        if c.section == section
    }
    checks = list(dict.fromkeys(check for _, _, check in cells))
    notes: dict[str, int] = {}
    table = []
    for (key, generation), ran in rows.items():
        words = []
        for check in checks:
            cell = cells.get((key, generation, check))
            words.append(Markup(NOT_RUN if cell is None else _word(ran, cell, known, notes)))
        table.append((f"{ran.vllm} {generation} {ran.device}", *words))
    lines = markdown_table(("vLLM", *map(Markup, checks)), table)
    return lines + ([""] if notes else []) + [f"{number}. {note}" for note, number in notes.items()]


def _exists(ran: SuiteRun, generation: str) -> bool:
    """A generation that this vLLM does not have gets no row."""
    return any(cell.generation == generation and cell.outcome != ABSENT for cell in ran.cells)


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
