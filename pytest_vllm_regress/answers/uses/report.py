"""An answer as text, Markdown and JSON."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ...util.text import markdown_cell, one_line
from .answer import Answer, Problem, in_range

SCHEMA_VERSION = 1
MAX_LISTED = 100


def span(releases: Sequence[str], all_releases: Sequence[str]) -> str:
    """Return releases as text, those that follow each other as ``0.21.0 to 0.24.0``."""
    return ", ".join(
        run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}"
        for run in _runs(set(releases), all_releases)
    )


def text(answer: Answer, source: str) -> Iterator[str]:
    """Yield the lines of the report."""
    releases = list(answer.problems)
    yield f"{one_line(source)}: {_count(len(answer.project.uses), 'use')} of vLLM in {_count(answer.project.files, 'file')}"
    complete = span(answer.complete, releases) or "no release"
    yield f"everything exists in: {complete} ({len(answer.complete)} of {len(releases)} releases, {releases[0]} to {releases[-1]})"
    yield from _declared_lines(answer, releases)
    rows = list(first_missing(answer))
    if rows:
        yield "\nfirst thing missing:"
        width = max(len(row) for row, _, _ in rows)
        for name, problem, more in rows:
            yield f"  {name.ljust(width)}  {one_line(str(problem))}{f'; {more} more' if more else ''}"
    newest = answer.problems[answer.newest]
    if newest:
        yield f"\nmissing in the newest release, {answer.newest}:"
        yield from _listed([one_line(str(problem)) for problem in newest])
    if answer.deprecated:
        yield "\nwill be removed:"
        yield from _listed(
            [one_line(f"{d.use.place}: {d.use.name}: {d.message}") for d in answer.deprecated]
        )
    if answer.unknown:
        yield "\nin no release, so not counted (made at run time, or not vLLM's):"
        yield from _listed([one_line(f"{use.place}: {use.name}") for use in answer.unknown])


def markdown(answer: Answer, source: str) -> str:
    """Return the report as Markdown."""
    releases = list(answer.problems)
    lines = [
        f"Everything that {markdown_cell(source)} uses exists in vLLM **{span(answer.complete, releases) or 'no release'}** "
        f"({len(answer.complete)} of {len(releases)} releases).",
        "",
    ]
    lines += [f"- {markdown_cell(line)}" for line in _declared_lines(answer, releases)]
    rows = [
        (name, str(p.use.place), p.text, p.instead, str(more))
        for name, p, more in first_missing(answer)
    ]
    lines += _table(("vLLM", "where", "first thing missing", "now", "more"), rows)
    notes = [(d.use.name, str(d.use.place), d.message) for d in answer.deprecated]
    lines += _table(("will be removed", "where", "vLLM says"), notes)
    return "\n".join(lines).rstrip()


def to_json(answer: Answer, source: str) -> dict[str, Any]:
    """Return plain values for ``--json``."""
    return {
        "schema": SCHEMA_VERSION,
        "source": source,
        "files": answer.project.files,
        "uses": len(answer.project.uses),
        "complete": list(answer.complete),
        "declared": [
            {
                **dataclasses.asdict(declared),
                "releases": list(in_range(declared, answer.problems)),
                "broken": list(answer.broken.get(declared, ())),
            }
            for declared in answer.project.declared
        ],
        "releases": {
            release: [p.to_json() for p in problems]
            for release, problems in answer.problems.items()
        },
        "newest": answer.newest,
        "deprecated": [deprecation.to_json() for deprecation in answer.deprecated],
        "unknown": [
            {"use": use.name, "kind": use.kind, **dataclasses.asdict(use.place)}
            for use in answer.unknown
        ],
        "notes": list(answer.project.notes),
    }


def first_missing(answer: Answer) -> Iterator[tuple[str, Problem, int]]:
    """Yield releases, the first thing that they lack, and how many more they lack; those with the
    same are together."""
    lacking = [(release, problems) for release, problems in answer.problems.items() if problems]
    order = list(answer.problems)
    for _, group in itertools.groupby(
        lacking, key=lambda item: (item[1][0].use.place, item[1][0].text, len(item[1]))
    ):
        rows = list(group)
        yield span([release for release, _ in rows], order), rows[0][1][0], len(rows[0][1]) - 1


def _declared_lines(answer: Answer, releases: Sequence[str]) -> Iterator[str]:
    for declared in answer.project.declared:
        broken = answer.broken.get(declared, ())
        if broken:
            state = f"breaks with {span(broken, releases)}"
        else:
            state = (
                "nothing breaks"
                if in_range(declared, releases)
                else "no known release is in this range"
            )
        yield f"declared: vllm{declared.specifier} ({declared.place}): {state}"
    if not answer.project.declared:
        yield "declared: no range of vllm"


def _runs(chosen: Collection[str], releases: Sequence[str]) -> Iterator[list[str]]:
    for is_chosen, group in itertools.groupby(releases, key=lambda release: release in chosen):
        if is_chosen:
            yield list(group)


def _listed(lines: Sequence[str]) -> Iterator[str]:
    yield from (f"  {line}" for line in lines[:MAX_LISTED])
    if len(lines) > MAX_LISTED:
        yield f"  and {len(lines) - MAX_LISTED} more"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    head = ["", f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    return [
        *head,
        *(
            f"| {' | '.join(markdown_cell(cell) or '-' for cell in row)} |"
            for row in rows[:MAX_LISTED]
        ),
        "",
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
