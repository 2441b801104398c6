"""The ends of affected ranges: which were observed, and which are inferred.

Is an end of a range observed or inferred? It is observed if the two adjacent stable releases around it were run on the same device, the
one inside showed the failure, and the one outside did not. If the release outside was found in the
run not to have the feature that fails, not yet or no longer, the failure exists as long as the
feature does. A release that could not be run decides nothing, whatever the reason.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ...cases.model import Case, Range
from ...cases.proofs.fingerprint import case_fingerprint, code_fingerprint
from ...cases.proofs.proof import recorded_proof
from ...cases.verdict import Verdict
from ...environments.installed import VLLM
from ...environments.releases import known_releases
from ...errors import Cause, UsageError
from ...util.versions import version_of
from .verdict_table import Recorded, VerdictTable, read_table

if TYPE_CHECKING:
    from ...runner.batch import Batch

Releases = Callable[[str], Sequence[Version]]
"""Stable releases of a package, oldest first."""


@dataclass(frozen=True)
class Boundary:
    """An end of a range: ``inside`` is the release that must show the failure, ``outside`` the
    adjacent one that must not.

    ``feature``: the release outside does not have the feature that fails.

    ``bound``: the part of the specifier. ``reason``: what was observed, or why nothing was.
    ``missing``: releases not run, or INCONCLUSIVE.
    ``contradicted``: a release that was run shows the opposite of what the range says.
    """

    case_id: str
    package: str
    bound: str
    inside: str
    outside: str
    observed: bool
    reason: str
    missing: tuple[str, ...] = ()
    contradicted: bool = False
    feature: bool = False

    @property
    def state(self) -> str:
        """``observed``, ``with the feature`` or ``inferred``."""
        if self.feature:
            return "with the feature"
        return "observed" if self.observed else "inferred"

    def __str__(self) -> str:
        return f"{self.package} {self.bound} {self.state} ({self.reason})"

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "case_id"}


def boundaries(
    case: Case, table: VerdictTable, releases: Releases | None = None
) -> tuple[Boundary, ...]:
    """Return the ends of the case's ranges, as far as there are releases on both sides.

    ``releases``: by default those that this package knows, and newer ones in the table.
    """

    def known(package: str) -> Sequence[Version]:
        listed = known_releases(package)
        recorded = table.releases(package) if listed else ()
        return (*listed, *(version for version in recorded if version > listed[-1]))

    return tuple(
        _boundary(case, affected, inside, outside, table)
        for affected in case.affected
        for inside, outside in _ends(affected, (releases or known)(affected.package))
    )


def counts_of(ends: Sequence[Boundary]) -> str:
    """Return how many ends there are in each state, in words."""
    states = Counter(end.state for end in ends)
    counts = (f"{states[state]} {state}" for state in ("observed", "with the feature", "inferred"))
    return f"{len(ends)} ends: {', '.join(counts)}"


def observation(case: Case, versions: Mapping[str, str], table: VerdictTable) -> str:
    """Return what was recorded of the failure for exactly this version of the package that decides;
    empty if nothing was."""
    package = case.affected[0].package
    for name in VLLM if package == "vllm" else (package,):
        version = version_of(versions.get(name, ""))
        for entry in table.at(case.id, name, version.public) if version is not None else ():
            if entry.shown:
                return f"observed on {name} {version} ({entry.device}, {entry.date})"
    return ""


def before_feature(case: Case, versions: Mapping[str, str], table: VerdictTable) -> bool:
    """Return whether the release is older than the feature that fails: a release that is not older
    was run and does not have it, nor has any before it shown the failure."""
    package = case.affected[0].package
    names = VLLM if package == "vllm" else (package,)
    version = next((version_of(versions[name]) for name in names if name in versions), None)
    if version is None or not any(entry.lacks_feature for entry in table.of_case(case.id)):
        return False
    recorded = [
        (found, entry)
        for entry in table.of_case(case.id)
        for name in names
        if (found := version_of(table.version(entry.environment, name) or "")) is not None
    ]
    first = min((found for found, entry in recorded if entry.shown), default=None)
    return any(
        entry.lacks_feature and version <= found and (first is None or found < first)
        for found, entry in recorded
    )


def _ends(affected: Range, releases: Sequence[Version]) -> Iterator[tuple[Version, Version]]:
    """Yield the release inside and the adjacent one outside for each end of the range."""
    for older, newer in itertools.pairwise(releases):
        if affected.contains(older) != affected.contains(newer):
            yield (older, newer) if affected.contains(older) else (newer, older)


def _boundary(
    case: Case, affected: Range, inside: Version, outside: Version, table: VerdictTable
) -> Boundary:
    at_inside = table.at(case.id, affected.package, str(inside))
    at_outside = table.at(case.id, affected.package, str(outside))
    showing = {entry.device for entry in at_inside if entry.shown}
    failing = {entry.device for entry in at_outside if entry.shown}
    passing = showing & {entry.device for entry in at_outside if entry.shown is False} - failing
    lacking = showing & {entry.device for entry in at_outside if entry.lacks_feature} - failing
    devices = passing or lacking
    # A run inside this range may pass because another package was outside its own range.
    excused = Verdict.FIXED if len(case.affected) > 1 else None
    wrong_inside = not showing and any(
        entry.shown is False and entry.verdict is not excused for entry in at_inside
    )
    sides = [(inside, at_inside, wrong_inside), (outside, at_outside, bool(failing))]
    if devices:
        other = f"{outside} {'passes' if passing else 'does not have the feature'}"
        reason = f"{inside} shows it, {other}, on {', '.join(sorted(devices))}"
    else:
        older_first = sides if inside < outside else sides[::-1]
        reason = "; ".join(_reason(case, *side) for side in older_first)
    return Boundary(
        case.id,
        affected.package,
        _bound(affected, inside, outside),
        str(inside),
        str(outside),
        bool(devices),
        reason,
        missing=tuple(
            str(version)
            for version, entries, _ in sides
            if not any(entry.is_clear for entry in entries)
        ),
        contradicted=not devices and (wrong_inside or bool(failing)),
        feature=bool(devices) and not passing,
    )


def _reason(case: Case, version: Version, entries: Sequence[Recorded], wrong: bool) -> str:
    """Return why the release decides nothing, or what it showed."""
    if not entries:
        return f"{version} needs a GPU" if case.devices == ("gpu",) else f"{version} not run yet"
    clear = [entry.shown for entry in entries if entry.shown is not None]
    if clear:
        text = f"{version} {'shows it' if any(clear) else 'passes'}"
        return f"{text}, which contradicts the range" if wrong else text
    causes = {entry.cause for entry in entries if entry.verdict is Verdict.NOT_APPLICABLE}
    if not causes:
        return f"{version} inconclusive"
    # The one that says most about the release.
    cause = max(filter(None, causes), key=list(Cause).index, default=None)
    return f"{version} {cause.words if cause else 'was not applicable, for a reason not recorded'}"


def _bound(affected: Range, inside: Version, outside: Version) -> str:
    """Return the part of the specifier that makes this end: the one that ``outside`` does not
    satisfy."""
    around = next(
        specifiers
        for specifiers in affected.alternatives
        if specifiers.contains(inside, prereleases=True)
    )
    parts = [part for part in around if not SpecifierSet(str(part)).contains(outside)]
    return ",".join(sorted(map(str, parts))) or affected.specifier


class Only(StrEnum):
    """Which part of a matrix to run."""

    BOUNDARIES = "boundaries"
    MISSING = "missing"


def remaining(
    cases: Sequence[Case], batches: Sequence[Batch], only: Sequence[Only]
) -> tuple[Batch, ...]:
    """Return the batches with only the cases that these parts have.

    Raises ``UsageError`` if nothing is left.
    """
    table, left = read_table(cases), tuple(batches)
    for part in dict.fromkeys(only):
        if part is Only.BOUNDARIES:
            has = "every end of a range among these releases"
            missing = {
                (f"{end.package}-{version}", case.id)
                for case in cases
                for end in boundaries(case, table)
                for version in end.missing
            }
        else:
            has = "a clear one for every case in these environments"
            with_verdict = {case.id: _with_verdict(table, case) for case in cases}
            missing = {
                (batch.environment, case.id)
                for batch in left
                for case in batch.cases
                if batch.environment not in with_verdict[case.id]
            }
        reduced = [
            batch.only({case.id for case in batch.cases if (batch.environment, case.id) in missing})
            for batch in left
        ]
        left = tuple(batch for batch in reduced if batch.cases)
        if not left:
            raise UsageError(f"--only {part.value}: the table of verdicts has {has}")
    return left


def _with_verdict(table: VerdictTable, case: Case) -> set[str]:
    """Return the environments in which the case's present test has a clear verdict.

    A verdict of a proof counts as long as the proof is not stale. Without its cause, NOT_APPLICABLE
    is not clear.
    """
    code = code_fingerprint(case.directory)
    codes: set[str | None] = {code}
    proof = recorded_proof(case)
    if proof is not None and proof.fingerprint == case_fingerprint(case, code):
        codes.add(None)
    return {
        entry.environment
        for entry in table.of_case(case.id)
        if entry.is_clear and entry.code in codes
    }
