"""Verdicts as Markdown and as JUnit XML. Texts from result files are hostile: they are escaped, and cut."""

from __future__ import annotations

import re

from ..cases.cells import Cell, cells, oldest_first
from ..cases.results import RunResult
from ..cases.verdict import excerpt
from ..util.text import printable
from .signs import SIGNS

MAX_REASON = 600
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~&@:$])")


def markdown_text(run: RunResult) -> str:
    """GitHub-flavoured Markdown: the table case by environment, then why for every cell that is not as expected."""
    found = cells(run.results)
    if not found:
        return "No verdicts.\n"
    environments = oldest_first(run.results)
    lines = ["| case | " + " | ".join(map(_plain, environments)) + " |", "| --- |" + " --- |" * len(environments)]
    for case_id in dict.fromkeys(cell.case_id for cell in found):
        row = [
            "; ".join(_cell(c) for c in found if (c.case_id, c.environment) == (case_id, name)) for name in environments
        ]
        lines.append(f"| {_plain(case_id)} | " + " | ".join(row) + " |")
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


def _cell(cell: Cell) -> str:
    verdict = f"{SIGNS[cell.verdict]} {_plain(cell.verdict.value)}"
    return f"{verdict if cell.expected else f'**{verdict}**'} ({cell.device})"


def _plain(text: str) -> str:
    """``text`` on one line, with nothing left that Markdown, HTML or a mention would take for its own."""
    return _MARKDOWN.sub(r"\\\1", " ".join(printable(text).split())).replace("\\<", "&lt;").replace("\\>", "&gt;")
