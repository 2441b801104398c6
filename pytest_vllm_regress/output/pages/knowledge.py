"""What is known of each case in each release of vLLM: recorded verdicts, and the affected ranges
where nothing was run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ...answers.audit.matching import AuditMatch, Inventory, find
from ...answers.audit.target import release
from ...answers.audit.verdict_table import Recorded, VerdictTable
from ...cases.model import Case
from ...environments.index.releases import known_releases
from ...environments.installed import VLLM
from ...util.versions import version_of

FIRST_RELEASE = "0.7.0"
"""Older releases are shown only if something was run there."""
_ENVIRONMENT = re.compile(r"vllm(?:-cpu)?-(\d+(?:\.\d+)*(?:\.post\d+)?)")


@dataclasses.dataclass(frozen=True)
class ReleaseState:
    """What is known of a case in a release."""

    recorded: tuple[Recorded, ...]
    in_range: bool | None
    """None if the range names a package of which the release's version is not known."""

    @property
    def failing(self) -> bool:
        """Whether the release has the failure: a clear verdict counts, otherwise the range.

        What does the overview show where nothing was run? Whether the affected range has the
        release, by its lock or, without one, by vLLM's version.
        """
        clear = [entry.shown for entry in self.recorded if entry.shown is not None]
        return any(clear) if clear else bool(self.in_range)

    @property
    def observed(self) -> Recorded | None:
        """The verdict that shows the failure."""
        return next((entry for entry in self.recorded if entry.shown), None)


class Knowledge:
    """The states of all cases in all releases, oldest first, and the verdicts of other
    environments."""

    def __init__(self, cases: Sequence[Case], table: VerdictTable, locks: Path) -> None:
        self.cases = tuple(cases)
        rows = {case.id: latest(table.of_case(case.id)) for case in cases}
        run = {release_of(entry.environment) for row in rows.values() for entry in row}
        first = version_of(FIRST_RELEASE)
        assert first is not None
        self.releases = tuple(
            str(version)
            for version in known_releases("vllm")
            if version >= first or str(version) in run
        )
        self._inventories = {name: release(name, locks) for name in self.releases}
        versions = {name: _versions(inventory) for name, inventory in self._inventories.items()}
        self.others = tuple(
            dict.fromkeys(
                entry.environment
                for row in rows.values()
                for entry in row
                if release_of(entry.environment) not in versions
            )
        )
        self._states = {
            case.id: {
                name: ReleaseState(_at(rows[case.id], name), _in_range(case, versions[name]))
                for name in self.releases
            }
            for case in cases
        }
        self._rows = rows

    def states(self, case: Case) -> Mapping[str, ReleaseState]:
        """Return the state of a case by release."""
        return self._states[case.id]

    def history(self, case: Case) -> tuple[Recorded, ...]:
        """Return the verdict of each environment and device, the latest first."""
        return tuple(sorted(self._rows[case.id], key=lambda entry: entry.date, reverse=True))

    def in_environment(self, case: Case, environment: str) -> tuple[Recorded, ...]:
        """Return the verdicts of an environment that is not that of a plain release."""
        return tuple(entry for entry in self._rows[case.id] if entry.environment == environment)

    def findings(self, name: str) -> tuple[AuditMatch, ...]:
        """Return what an audit of a release finds, the gravest first."""
        return find(self._inventories[name], self.cases)

    def has_lock(self, name: str) -> bool:
        """Return whether the versions of the other packages are known."""
        return len(self._inventories[name].versions) > 1


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


def _at(row: Iterable[Recorded], name: str) -> tuple[Recorded, ...]:
    return tuple(entry for entry in row if release_of(entry.environment) == name)


def _versions(inventory: Inventory) -> dict[str, str]:
    return {name: versions[0] for name, versions in inventory.versions.items() if versions}


def _in_range(case: Case, versions: Mapping[str, str]) -> bool | None:
    known = [
        part
        for part in case.affected
        if part.package in versions or (part.package == "vllm" and set(VLLM) & set(versions))
    ]
    if not all(part.check(versions) for part in known):
        return False
    return True if len(known) == len(case.affected) else None
