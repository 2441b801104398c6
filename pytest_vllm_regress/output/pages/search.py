"""What the search page of the site knows: cases, diagnoses, and fixes of upstream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...answers.explain.diagnoses import diagnoses
from ...answers.fixes.index import FixIndex
from ...answers.fixes.overview import by_subsystem, subsystem
from ...cases.model import Case
from .rendering import case_page

MAX_INDEX = 1_000_000
"""Bytes of the texts that the search page loads; the oldest fixes are left out beyond."""


def search_index(cases: Sequence[Case], index: FixIndex) -> dict[str, Any]:
    """Return the texts to search. Fixes refer to releases and subsystems by index."""
    subsystems: dict[str, int] = {}
    fixes: list[tuple[int, int, int, str]] = []
    room = MAX_INDEX * 3 // 4
    for fix in reversed(index.fixes):
        if fix.is_titled_fix and room > 0:
            number = subsystems.setdefault(subsystem(fix), len(subsystems))
            fixes.append((fix.number, fix.first, number, fix.title))
            room -= len(fix.title.encode()) + 20
    return {
        "cases": [(case.id, case.title, case_page(case.id)) for case in cases],
        "diagnoses": [
            (name, entry.title, entry.why, entry.do[0]) for name, entry in diagnoses().items()
        ],
        "releases": index.releases,
        "subsystems": list(subsystems),
        "fixes": fixes,
    }


def fixes_after(index: FixIndex, release: str) -> dict[str, Any]:
    """Return what is titled as a fix and that ``release`` lacks: the number by subsystem, the
    largest first, and those that the next release has; nothing for an unknown release."""
    if release not in index.releases:
        return {}
    number = index.releases.index(release)
    later = [fix for fix in index.fixes if fix.first > number and fix.is_titled_fix]
    following = min((fix.first for fix in later), default=len(index.releases))
    known = following < len(index.releases)
    return {
        "counts": [(name, len(fixes)) for name, fixes in by_subsystem(later)],
        "next": index.releases[following] if known else "",
        "fixes": by_subsystem(fix for fix in later if fix.first == following),
        "until": index.until_date,
    }
