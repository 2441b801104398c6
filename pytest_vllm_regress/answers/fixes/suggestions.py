"""Fixes of upstream that may concern a failure that no case explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .evidence import Evidence
from .index import Fix, FixIndex, fix_index
from .ranking import Ranked, Ranker

MAX_SUGGESTED = 5
LEAD = 1.8
"""Factor by which the best score leads the second from which the first is *likely*: measured on
reports of which half have no fix (docs/reference/fixes-measured.md)."""
_MAX_WORDS = 5


@dataclass(frozen=True)
class Suggestion:
    """A fix that the reported version lacks.

    ``release``: the first that contains it; None if none does yet. ``why``: what it has in common
    with the failure. ``is_likely``: it leads all others clearly; otherwise read it before upgrading.
    """

    fix: Fix
    release: str | None
    why: str
    is_likely: bool = False
    reverted_by: str = ""

    @property
    def text(self) -> str:
        """The suggestion in one line."""
        where = f"in {self.release}" if self.release else "in no release yet"
        taken_back = f"; taken back by {self.reverted_by}" if self.reverted_by else ""
        return f"{self.fix.name}: {self.fix.title} ({where}{taken_back}; {self.why})"


def suggest(
    evidence: Evidence, version: str | None, index: FixIndex | None = None
) -> list[Suggestion]:
    """Return the fixes that may concern a failure, the most probable first.

    None without a version and a call in vLLM, and none for a failure that follows from another one:
    they would be guesses.
    """
    if version is None or not evidence.places or evidence.is_follow_up:
        return []
    index = index or fix_index()
    lacking, since = index.lacking(version), index.day_of(version)
    if not lacking:
        return []
    ranked = Ranker(index.fixes).rank(evidence, lacking, since)
    return [
        _suggestion(index, entry, is_likely=number == 0 and leads(ranked))
        for number, entry in enumerate(ranked[:MAX_SUGGESTED])
    ]


def leads(ranked: Sequence[Ranked]) -> bool:
    """Return whether the first change leads clearly."""
    second = ranked[1].score if len(ranked) > 1 else 0.0
    return bool(ranked) and bool(ranked[0].functions) and ranked[0].score >= LEAD * second


def _suggestion(index: FixIndex, entry: Ranked, *, is_likely: bool) -> Suggestion:
    reverted = index.reverted_by(entry.fix)
    return Suggestion(
        entry.fix,
        index.first_release(entry.fix),
        _why(entry),
        is_likely and reverted is None,
        reverted.name if reverted else "",
    )


def _why(entry: Ranked) -> str:
    parts = []
    if entry.functions:
        parts.append(f"changes {', '.join(entry.functions[:3])}")
    if entry.has_line:
        parts.append("removes a line that the traceback shows")
    if entry.words:
        parts.append(f"shares the words {', '.join(entry.words[:_MAX_WORDS])}")
    return "; ".join(parts) or "changes a file of the traceback"
