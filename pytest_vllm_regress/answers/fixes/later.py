"""Changes that landed after a release: those that correct what it brought, and how many fixes, week
by week."""

from __future__ import annotations

import datetime
import enum
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from .index import Fix, FixIndex
from .overview import concern, subsystem

DAYS_OF_CORRECTIONS = 30
"""Days after the code of a release was cut in which a fix of a function that the release changed
counts as a fix of that change."""
_MAX_FILES = 6
"""Files up to which a change can be the correction of another one; larger ones touch everything."""
_MENTIONED = re.compile(r"#(\d{2,7})\b")
_REGRESSION = re.compile(r"(?i)\bregress(?:ion(?! tests?\b)|ed)")


class Correction(enum.StrEnum):
    """How upstream says that a change broke something, the clearest first."""

    REVERT = "takes back"
    MENTION = "corrects"
    REGRESSION = "fixes a regression"
    SAME_FUNCTION = "fixes the same function as"


@dataclass(frozen=True)
class UpstreamRegression:
    """A later change that corrects what a release brought. ``of``: the pull requests, if known."""

    fix: Fix
    correction: Correction
    of: tuple[int, ...]
    release: str | None
    """The first release that contains the correction."""

    def to_json(self) -> dict[str, Any]:
        of = [f"vllm#{number}" for number in self.of]
        own = {"fix": self.fix.name, "title": self.fix.title, "date": self.fix.date}
        return own | {"release": self.release, "why": self.correction, "of": of}

    @property
    def text(self) -> str:
        """The correction in one line."""
        of = "".join(f" vllm#{number}" for number in self.of[:3])
        where = f"in {self.release}" if self.release else "in no release yet"
        return f"{self.fix.name}: {self.fix.title} ({where}; {self.correction}{of})"


def named_regressions(
    index: FixIndex, before: str, after: str, options: Mapping[str, Any]
) -> list[UpstreamRegression]:
    """Return the later changes that correct what ``after`` has and ``before`` lacks: those that
    touch what the options of a server use first, then the clearest."""
    old, new = index.release_number(before), index.release_number(after)
    if old is None or new is None or not index.dates[new]:
        return []
    brought = {fix.number: fix for fix in index.fixes if old < fix.first <= new}
    fixed = {
        (path, name): fix.number
        for fix in brought.values()
        if fix.is_titled_fix
        for path, name in _named_functions(fix)
    }
    end = str(_day(index.dates[new]) + datetime.timedelta(DAYS_OF_CORRECTIONS))
    found = []
    for fix in index.fixes if brought else ():
        if fix.first > new and (result := _correction(fix, brought, fixed, fix.date <= end)):
            found.append(UpstreamRegression(fix, *result, index.first_release(fix)))
    order = list(Correction)
    return sorted(
        found, key=lambda r: (not concern(r.fix, options), order.index(r.correction), r.fix.date)
    )


def _correction(
    fix: Fix,
    brought: Mapping[int, Fix],
    fixed: Mapping[tuple[str, str], int],
    is_soon: bool,
) -> tuple[Correction, tuple[int, ...]] | None:
    """Return how a later change corrects one of those that a release brought, and which."""
    numbers = dict.fromkeys(map(int, _MENTIONED.findall(fix.title)))
    mentioned = tuple(number for number in numbers if number in brought)
    if mentioned and fix.is_titled_fix:
        return (Correction.REVERT if fix.reverts else Correction.MENTION), mentioned
    if not is_soon or len(fix.changed) > _MAX_FILES:
        return None
    if _REGRESSION.search(fix.title):
        return Correction.REGRESSION, ()
    same = tuple(dict.fromkeys(fixed[place] for place in _named_functions(fix) if place in fixed))
    return (Correction.SAME_FUNCTION, same) if same and fix.is_titled_fix else None


def _named_functions(fix: Fix) -> list[tuple[str, str]]:
    return [
        (path, name)
        for path, names in fix.changed.items()
        for name in names
        if not name.startswith("__")
    ]


@dataclass(frozen=True)
class Week:
    """The fixes that landed in a week after a release was cut, and those of them that a patch release
    took. ``first_day``: its first day."""

    first_day: str
    fixes: tuple[Fix, ...]
    taken: tuple[Fix, ...]

    @property
    def subsystems(self) -> dict[str, int]:
        """Number of fixes by subsystem, the largest first."""
        return dict(Counter(map(subsystem, self.fixes)).most_common())

    def to_json(self) -> dict[str, Any]:
        names = {"fixes": [f.name for f in self.fixes], "taken": [f.name for f in self.taken]}
        return {"first_day": self.first_day, "subsystems": self.subsystems, **names}


def weeks_after(index: FixIndex, version: str, options: Mapping[str, Any]) -> list[Week]:
    """Return what is titled as a fix and landed after the code of a release was cut, week by week
    until the end of the history; nothing for a version that is unknown or later than the history.

    With ``options`` of a server only the fixes that touch what they use.
    """
    day, number = index.day_of(version), index.release_number(version)
    if number is None or not "" < day < index.until_date:
        return []
    cut = _day(day)
    weeks: list[list[Fix]] = [[] for _ in range((_day(index.until_date) - cut).days // 7 + 1)]
    for at in sorted(index.lacking(version)):
        fix = index.fixes[at]
        if fix.is_titled_fix and (not options or concern(fix, options)):
            weeks[max(0, (_day(fix.date) - cut).days // 7)].append(fix)
    patches = set(patch_releases(index, version))
    return [
        Week(
            str(cut + datetime.timedelta(7 * position)),
            tuple(fixes),
            tuple(fix for fix in fixes if index.first_release(fix) in patches),
        )
        for position, fixes in enumerate(weeks)
    ]


def patch_releases(index: FixIndex, version: str) -> Sequence[str]:
    """Return the later releases of the same minor version."""
    wanted = Version(version)
    return [
        release
        for release in index.releases
        if Version(release).release[:2] == wanted.release[:2] and Version(release) > wanted
    ]


def _day(text: str) -> datetime.date:
    return datetime.date.fromisoformat(text)
