"""The record as a page of Markdown: a row for each version and engine generation, a column for each
check."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .record import ABSENT, FAILED, PASSED, SHOWN, CheckResult, Fault, SuiteRun

NOT_RUN = "-"


def table(runs: Iterable[SuiteRun], faults: Sequence[Fault]) -> list[str]:
    """The page, as lines of Markdown (ASCII)."""
    ordered = sorted(runs, key=lambda ran: (ran.device != "sim", ran.vllm))
    lines = [
        "# Conformance",
        "",
        "<!-- written by `vllm-regress conformance`; do not edit -->",
        "",
        "Which features work on which vLLM, according to the conformance suite: a row for each version and engine generation.",
        "`ok`: the check passed. `n/a`: this vLLM or device does not support it; the note says why. `FAIL`: it fails; the note says what is known.",
        f"`{NOT_RUN}`: the check has not run there yet.",
        "",
        "Written by `vllm-regress conformance NAME...` from `docs/records/conformance.json`.",
        "[Support a new vLLM](../how-to/support-a-new-vllm.md) says how to add a row.",
    ]
    for section in dict.fromkeys(cell.section for ran in ordered for cell in ran.cells):
        lines += ["", f"## {section}", "", *_section(section, ordered, faults)]
    lines += [
        "",
        "## What was installed",
        "",
        f"| environment | device | {' | '.join(('vllm', *SHOWN))} | machine | day |",
    ]
    lines.append("|" + " --- |" * (len(SHOWN) + 5))
    for ran in ordered:
        versions = [ran.versions.get(name, "") for name in ("vllm", *SHOWN)]
        lines.append(
            f"| {' | '.join([ran.environment, ran.device, *versions, ran.machine, ran.at])} |"
        )
    for ran in ordered:
        if ran.gpu:
            facts = ", ".join(
                f"{name.replace('_', ' ')} {value}" for name, value in ran.gpu.items()
            )
            lines += ["", f"{ran.environment} on {ran.device}: {facts}."]
    return [line.encode("ascii", "replace").decode() for line in lines]


def _section(section: str, runs: Sequence[SuiteRun], faults: Sequence[Fault]) -> list[str]:
    rows = {
        (ran.key, generation): ran
        for ran in runs
        for generation in ("V0", "V1")
        if _exists(ran, generation)
    }
    cells = {
        (ran.key, c.generation, c.check): c
        for ran in runs
        for c in ran.cells
        if c.section == section
    }
    checks = list(dict.fromkeys(check for _, _, check in cells))
    notes: dict[str, int] = {}
    lines = [f"| vLLM | {' | '.join(checks)} |", "|" + " --- |" * (len(checks) + 1)]
    for (key, generation), ran in rows.items():
        words = []
        for check in checks:
            cell = cells.get((key, generation, check))
            words.append(NOT_RUN if cell is None else _word(ran, cell, faults, notes))
        lines.append(f"| {ran.vllm} {generation} {ran.device} | {' | '.join(words)} |")
    return lines + ([""] if notes else []) + [f"{number}. {note}" for note, number in notes.items()]


def _exists(ran: SuiteRun, generation: str) -> bool:
    """A generation that this vLLM does not have gets no row."""
    return any(cell.generation == generation and cell.outcome != ABSENT for cell in ran.cells)


def _word(ran: SuiteRun, cell: CheckResult, faults: Sequence[Fault], notes: dict[str, int]) -> str:
    if cell.outcome == PASSED:
        return PASSED
    cause = (
        next((fault.why for fault in faults if fault.explains(ran, cell)), None)
        if cell.outcome == FAILED
        else None
    )
    note = cause or re.sub(r"\s+", " ", cell.reason.removeprefix("Skipped: "))[:300].replace(
        "|", "/"
    )
    note = note.replace(f"vLLM {ran.vllm}", "this vLLM")
    return f"{cell.outcome} [{notes.setdefault(note, len(notes) + 1)}]"
