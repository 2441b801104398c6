"""Results of ``uses --run`` as text, Markdown and JSON."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ....util.text import markdown_cell, one_line

if TYPE_CHECKING:
    from .run import Outcome, Smoke, Start

MAX_LISTED = 100


def text(results: Sequence[Smoke]) -> Iterator[str]:
    """Yield the lines of the report."""
    for smoke in results:
        yield f"\n{smoke.environment}, vLLM {smoke.version}: {_summary(smoke)}"
        yield from (f"  {one_line(line)}" for line in _lines(smoke)[:MAX_LISTED])


def markdown(results: Sequence[Smoke]) -> str:
    """Return the report as Markdown."""
    lines: list[str] = []
    for smoke in results:
        lines += [
            "",
            f"**{markdown_cell(smoke.environment)}**, vLLM {markdown_cell(smoke.version)}: {_summary(smoke)}",
            "",
        ]
        lines += [f"- {markdown_cell(line)}" for line in _lines(smoke)[:MAX_LISTED]]
    return "\n".join(lines).rstrip()


def to_json(results: Sequence[Smoke]) -> list[dict[str, Any]]:
    """Return plain values for ``--json``."""
    return [
        {
            "environment": smoke.environment,
            "version": smoke.version,
            "failed": smoke.failed,
            "uses": [_outcome(outcome, smoke) for outcome in smoke.outcomes],
            "starts": [_start(start) for start in smoke.starts],
        }
        for smoke in results
    ]


def _outcome(outcome: Outcome, smoke: Smoke) -> dict[str, Any]:
    use = outcome.use
    return {
        "use": use.name,
        "kind": use.kind,
        **dataclasses.asdict(use.place),
        "exists": None if outcome.missing is None else not outcome.missing,
        "missing": outcome.missing or None,
        "guarded": use.guarded,
        "history_differs": use in smoke.differs,
    }


def _start(start: Start) -> dict[str, Any]:
    return {
        **dataclasses.asdict(start.command.place),
        "words": list(start.tried.words),
        "left_out": list(start.tried.left_out),
        "error": start.error or None,
    }


def _summary(smoke: Smoke) -> str:
    counts = collections.Counter(
        "undecided" if outcome.missing is None else "missing" if outcome.missing else "exist"
        for outcome in smoke.outcomes
    )
    words = [
        f"{counts[state]} uses {state}"
        for state in ("exist", "missing", "undecided")
        if counts[state]
    ]
    if smoke.starts:
        words.append(
            f"{sum(not start.error for start in smoke.starts)} of {len(smoke.starts)} servers started"
        )
    return ", ".join(words) or "nothing to check"


def _lines(smoke: Smoke) -> list[str]:
    problems = set(smoke.problems)
    lines = []
    for outcome in smoke.outcomes:
        if outcome.missing:
            note = "" if outcome in problems or outcome.use.kind == "environment" else " (handled)"
            lines.append(f"{outcome.use.place}: {outcome.use.name}: {outcome.missing}{note}")
    for start in smoke.starts:
        where = str(start.command.place) if start.command.place.file else "no command"
        left_out = f" (without {', '.join(start.tried.left_out)})" if start.tried.left_out else ""
        result = (
            f"did not start: {start.error}" if start.error else "started, and generated a token"
        )
        lines.append(
            f"{where}: vllm serve {' '.join(start.tried.words)}".rstrip() + f"{left_out}: {result}"
        )
    lines += [f"{use.place}: {use.name}: the history says otherwise" for use in smoke.differs]
    return list(dict.fromkeys(lines))
