"""What is known of each case in each release of vLLM: recorded verdicts, and the affected ranges
where nothing was run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from ...answers.audit.matching import AuditMatch, find
from ...answers.audit.target import release
from ...answers.audit.verdict_table import Recorded, VerdictTable
from ...cases.model import Case
from ...environments.releases import known_releases

FIRST_RELEASE = "0.7.0"
"""Older releases are shown only if something was run there."""
_ENVIRONMENT = re.compile(r"vllm(?:-cpu)?-(\d+(?:\.\d+)*(?:\.post\d+)?)")


@dataclass(frozen=True)
class ReleaseState:
    """What is known of a case in a release."""

    recorded: tuple[Recorded, ...]
    in_range: bool | None
    """None if the range names a package of which the release's version is not known."""

    @property
    def clear(self) -> Recorded | None:
        """A verdict that tells whether the failure shows: rather one that shows it."""
        clear = [entry for entry in self.recorded if entry.shown is not None]
        return max(clear, key=lambda entry: bool(entry.shown), default=None)

    @property
    def failing(self) -> bool:
        """Whether the release has the failure: a clear verdict counts, otherwise the range.

        What does the overview show where nothing was run? Whether the affected range has the
        release, by its lock or, without one, by vLLM's version.
        """
        if self.clear:
            return bool(self.clear.shown)
        return bool(self.in_range) and not any(entry.lacks_feature for entry in self.recorded)

    @property
    def observed(self) -> Recorded | None:
        """The verdict that shows the failure."""
        return self.clear if self.clear and self.clear.shown else None


class Knowledge:
    """The states of all cases in all releases, oldest first.

    ``recorded``: the latest verdicts by case, also of other environments.
    ``inventories``: the packages by release.
    """

    def __init__(self, cases: Sequence[Case], table: VerdictTable, locks: Path) -> None:
        self.cases = tuple(cases)
        self.recorded = {case.id: latest(table.of_case(case.id)) for case in cases}
        run = {release_of(entry.environment) for row in self.recorded.values() for entry in row}
        first = Version(FIRST_RELEASE)
        self.releases = tuple(
            str(version)
            for version in known_releases("vllm")
            if version >= first or str(version) in run
        )
        self.inventories = {name: release(name, locks) for name in self.releases}
        self._states: dict[str, dict[str, ReleaseState]] = {case.id: {} for case in cases}
        for name, inventory in self.inventories.items():
            versions = {package: known[0] for package, known in inventory.versions.items() if known}
            for case in cases:
                self._states[case.id][name] = ReleaseState(
                    tuple(r for r in self.recorded[case.id] if release_of(r.environment) == name),
                    _in_range(case, versions),
                )

    def states(self, case: Case) -> Mapping[str, ReleaseState]:
        """Return the state of a case by release."""
        return self._states[case.id]

    def findings(self, name: str) -> tuple[AuditMatch, ...]:
        """Return what an audit of a release finds, the gravest first."""
        return find(self.inventories[name], self.cases)


def latest(recorded: Iterable[Recorded]) -> tuple[Recorded, ...]:
    """Return the latest verdict of each environment and device."""
    by_place: dict[tuple[str, str], Recorded] = {}
    for entry in recorded:
        previous = by_place.get((entry.environment, entry.device))
        if previous is None or entry.date >= previous.date:
            by_place[entry.environment, entry.device] = entry
    return tuple(by_place.values())


def release_of(environment: str) -> str:
    """Return the release of an environment that has vLLM and nothing else pinned; empty for others."""
    match = _ENVIRONMENT.fullmatch(environment)
    return match[1] if match else ""


def _in_range(case: Case, versions: Mapping[str, str]) -> bool | None:
    known = [part for part in case.affected if part.is_installed(versions)]
    if not all(part.check(versions) for part in known):
        return False
    return True if len(known) == len(case.affected) else None
