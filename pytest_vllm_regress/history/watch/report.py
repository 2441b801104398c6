"""What a look found, as lines, Markdown and JSON."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from ...cases.results import RunResult, group_into_cells
from ...cases.verdict import Verdict
from ...util.text import markdown_block, markdown_cell, markdown_inline
from .changes import Change, Edit
from .releases import Look, Release

SCHEMA_VERSION = 1
MAX_REASON = 300


@dataclasses.dataclass(frozen=True)
class Report:
    """Outcome of a look.

    ``unbuilt``: environments that could not be built, whose releases stay new. ``written``: the
    edits were applied.
    """

    day: str
    looks: tuple[Look, ...]
    run: RunResult
    changes: tuple[Change, ...]
    edits: tuple[Edit, ...]
    unbuilt: tuple[str, ...] = ()
    written: bool = False

    @property
    def unexpected_releases(self) -> tuple[Release, ...]:
        """The releases on which something was not as expected."""
        return tuple(dict.fromkeys(change.release for change in self.changes))

    @property
    def seen_releases(self) -> tuple[Release, ...]:
        """The releases that need no further look: they were run, and everything was as expected or
        the edits were written."""
        left = {look.release for look in self.looks if look.environment in self.unbuilt}
        left |= set() if self.written else {*self.unexpected_releases}
        return tuple(dict.fromkeys(look.release for look in self.looks if look.release not in left))

    def diff(self) -> str:
        """Return all edits as one unified diff."""
        return "".join(edit.diff() for edit in self.edits)

    def lines(self) -> Iterator[str]:
        """Yield lines for a terminal: a line for each environment, then the changes, then the
        corrected ranges with their new ends."""
        for look in self.looks:
            yield f"{look.release} in {look.environment}: {self._counts(look)}"
        for change in self.changes:
            yield f"{change.verdict.value} {change.case.id} on {change.release} ({change.device}): {change.case.title}"
            yield from (f"    {reason[:MAX_REASON]}" for reason in change.reasons)
            if change.by_hand:
                yield f"    no edit: {change.by_hand}"
        for edit in self.edits:
            yield f"{edit.case.id}: {edit.before} becomes {edit.after.specifier}"
            yield from (f"    {end}" for end in edit.ends)

    def markdown(self) -> str:
        """Return the same for a pull request or the summary of a CI job, with the diff."""
        lines = [f"# New releases, {self.day}"]
        rows = [(str(look.release), look.environment, self._counts(look)) for look in self.looks]
        lines += _table(("release", "environment", "verdicts"), rows)
        lines += _table(
            ("verdict", "case", "release", "device", "failure"),
            [
                (
                    change.verdict.value,
                    change.case.id,
                    str(change.release),
                    change.device,
                    change.case.title,
                )
                for change in self.changes
            ],
        )
        for change in self.changes:
            lines += [
                "",
                f"**{markdown_inline(change.case.id)} on {markdown_inline(str(change.release))}**",
                "",
            ]
            lines += [
                f"- {markdown_inline(line[:MAX_REASON])}"
                for line in (*change.reasons, change.by_hand)
                if line
            ]
        if self.edits:
            lines += ["", f"## Ranges {'corrected' if self.written else 'to correct'}"]
            ranges = [
                (
                    edit.case.id,
                    str(edit.before),
                    edit.after.specifier,
                    "; ".join(map(str, edit.ends)),
                )
                for edit in self.edits
            ]
            lines += _table(("case", "range", "corrected", "new ends"), ranges)
            lines += ["", markdown_block(self.diff().rstrip("\n"), "diff")]
        return "\n".join([*lines, ""])

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        return {
            "schema": SCHEMA_VERSION,
            "day": self.day,
            "looks": [
                {
                    "release": str(look.release),
                    "environment": look.environment,
                    "cases": len(look.cases),
                }
                for look in self.looks
            ],
            "unbuilt": list(self.unbuilt),
            "changes": [change.to_json() for change in self.changes],
            "edits": [edit.to_json() for edit in self.edits],
            "written": self.written,
            "diff": self.diff(),
        }

    def _counts(self, look: Look) -> str:
        if look.environment in self.unbuilt:
            return "could not be built"
        cells = group_into_cells(
            result for result in self.run.results if result.environment == look.environment
        )
        counts = collections.Counter(cell.verdict for cell in cells)
        return (
            ", ".join(
                f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict]
            )
            or "no verdicts"
        )


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table after an empty line; nothing without rows."""
    if not rows:
        return []
    lines = ["", f"| {' | '.join(titles)} |", f"| {' | '.join('---' for _ in titles)} |"]
    return [*lines, *(f"| {' | '.join(map(markdown_cell, row))} |" for row in rows)]
