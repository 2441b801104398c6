"""Verdicts as Markdown. Texts from result files are hostile: what is more than words is shown as code, and cut."""

from __future__ import annotations

import re

from ..cases.cells import Cell, by_place, cells, is_sparse, oldest_first
from ..cases.results import RunResult
from ..cases.verdict import excerpt
from ..util.text import printable
from .signs import SIGNS

MAX_REASON = 600
_WORDS = re.compile(r"[A-Za-z0-9 ,.;()'/+=-]*")
_REFERENCE = re.compile(r"www\.|\bGH-|\b[0-9a-f]{7,}\b|^[-+=]|^\d+[.)]", re.I)
"""What GitHub makes a link of (commits too), and what begins a list."""


def markdown_text(run: RunResult) -> str:
    """GitHub-flavoured Markdown: the table case by environment, then why for every cell that is not as expected."""
    found = cells(run.results)
    if not found:
        return "No verdicts.\n"
    lines = _list(found) if is_sparse(found) else _table(found, oldest_first(run.results))
    unexpected = [cell for cell in found if not cell.expected]
    lines += ["", f"{len(unexpected)} of {len(found)} cells are not as expected." if unexpected else "All as expected."]
    if any(cell.device == "sim" for cell in found):
        lines.append("sim: a simulated device; every part of vLLM is real but the model's arithmetic.")
    for cell in unexpected:
        lines += ["", f"**{_plain(cell.case_id)} in {_plain(cell.environment)} on {cell.device}**", ""]
        lines += [f"- {_plain(line)}" for line in cell.why()]
    return (
        "\n".join([*lines, *(f"\nProblem: {_plain(excerpt(problem, MAX_REASON))}" for problem in run.problems)]) + "\n"
    )


def _table(found: tuple[Cell, ...], environments: list[str]) -> list[str]:
    at = by_place(found)
    lines = ["| case | " + " | ".join(map(_in_table, environments)) + " |", "| --- |" + " --- |" * len(environments)]
    for case_id in dict.fromkeys(cell.case_id for cell in found):
        row = ["; ".join(map(_cell, at.get((case_id, name), ()))) for name in environments]
        lines.append(f"| {_in_table(case_id)} | " + " | ".join(row) + " |")
    return lines


def _list(found: tuple[Cell, ...]) -> list[str]:
    rows = [f"| {_in_table(cell.case_id)} | {_in_table(cell.environment)} | {_cell(cell)} |" for cell in found]
    return ["| case | environment | verdict |", "| --- | --- | --- |", *rows]


def _cell(cell: Cell) -> str:
    verdict = f"{SIGNS[cell.verdict]} {cell.verdict.value}"
    return f"{verdict if cell.expected else f'**{verdict}**'} ({cell.device})"


def _plain(text: str) -> str:
    """``text`` on one line: plain words as they are, anything else as code, in which Markdown, HTML, mentions and references mean nothing."""
    line = " ".join(printable(text).split())
    if _WORDS.fullmatch(line) and not _REFERENCE.search(line):
        return line
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    return f"{fence} {line} {fence}" if line else ""


def _in_table(text: str) -> str:
    """As ``_plain``; a table's own sign is escaped there, in code too."""
    return _plain(text).replace("|", "\\|")
