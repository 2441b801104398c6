"""Match the versions of an inventory with the affected ranges of the cases."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from packaging.version import Version

from ...cases.model import Case
from ...environments.index.releases import known_releases
from ...environments.installed import VLLM, VLLM_BUILDS, Package
from ...util.versions import is_version, version_of
from .inventory import Inventory
from .severity import severity

MAX_COMBINATIONS = 256
MAX_NAMED = 3
"""Maximum number of cases that a note names."""


@dataclasses.dataclass(frozen=True)
class Form:
    """A variant of the failure: whether this combination of versions shows it, and why."""

    name: str
    shows: bool
    reason: str


@dataclasses.dataclass(frozen=True)
class AuditMatch:
    """A documented failure of the combination ``versions``. ``package`` is the decisive package,
    ``forms`` are the case's variants.

    ``observed``: where the failure was observed with exactly this version; empty if it is inferred
    from the range.
    """

    case: Case
    versions: Mapping[str, str]
    reason: str
    forms: tuple[Form, ...]
    package: Package
    observed: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        case = self.case
        return {
            "case": case.id,
            "title": case.title,
            "family": case.family,
            "severity": severity(case),
            "affected": {affected.package: affected.specifier for affected in case.affected},
            "installed": dict(self.versions),
            "reason": self.reason,
            "observed": self.observed,
            "symptom": {
                "kind": case.symptom.kind,
                "phases": list(case.symptom.phases),
                "pattern": case.symptom.pattern,
            },
            "devices": list(case.devices),
            "variants": [dataclasses.asdict(form) for form in self.forms],
            "racy": case.racy,
            "first_fixed": case.first_fixed(),
            "workaround": case.workaround,
            "upstream": list(case.upstream),
            "fixed_by": list(case.fixed_by),
        }


def find(inventory: Inventory, cases: Iterable[Case]) -> tuple[AuditMatch, ...]:
    """Return the documented failures of ``inventory``, in the order of ``cases``."""
    return tuple(finding for case in cases if (finding := _match(inventory, case)) is not None)


def can_show(inventory: Inventory, cases: Iterable[Case]) -> bool:
    """Return whether ``inventory`` has vLLM, or all packages of at least one case, whatever their
    versions."""
    present = {*inventory.versions, *inventory.unpinned}
    return bool(present.intersection(VLLM)) or any(
        present.issuperset(condition.package for condition in case.affected) for case in cases
    )


def unknown_packages(inventory: Inventory, case: Case) -> tuple[str, ...]:
    """Return the packages whose unknown versions decide whether ``inventory`` has the failure; none
    if the known versions exclude it."""
    versions = {name: listed[0] for name, listed in inventory.versions.items()}
    present = {*versions, *({"vllm"} if set(VLLM).intersection(versions) else ())}
    excluded = any(
        condition.package in present and not condition.check(versions)
        for condition in case.affected
    )
    absent = [condition.package for condition in case.affected if condition.package not in present]
    return (
        ()
        if excluded
        else tuple(name for name in absent if name in inventory.unpinned or inventory.is_partial)
    )


def notes(inventory: Inventory, cases: Sequence[Case]) -> tuple[str, ...]:
    """Return what could not be decided: packages of the cases that are missing, unpinned, or have
    an invalid version."""
    names = _names(cases)
    versions = inventory.versions
    lines = []
    if not can_show(inventory, cases):
        lines.append(
            f"{inventory.source} has none of the packages that the cases are about ({', '.join(sorted(names - set(VLLM_BUILDS)))})"
            if not names & {*versions, *inventory.unpinned}
            else f"{inventory.source} has no vLLM, and no case is about its other packages alone: nothing was checked"
        )
    if inventory.unread:
        count = len(inventory.unread)
        problem = "lines are not requirements" if count > 1 else "line is not a requirement"
        lines.append(
            f"{inventory.source}: {count} {problem} and not counted: {inventory.unread[0]}"
        )
    lines += inventory.left_out
    for name in sorted(names & set(inventory.unpinned)):
        if name not in versions:
            lines.append(
                f"{inventory.unpinned[name]} has no version, so that nothing is known about {name}: give a lock file, or the interpreter itself"
            )
    if undecided := _undecided(inventory, cases):
        packages = ", ".join(sorted({name for missing in undecided.values() for name in missing}))
        failures = ", ".join(list(undecided)[:MAX_NAMED])
        if len(undecided) > MAX_NAMED:
            failures += f" and {len(undecided) - MAX_NAMED} more"
        lines.append(
            f"{inventory.source} gives no version of {packages}, so {failures} could not be checked: "
            "give a lock file, or the interpreter itself"
        )
    lines += _unknown_releases(versions)
    for name in sorted(names & set(versions)):
        lines += [
            f"{name} has version {version!r}, which is not a PEP 440 version: not known to be affected"
            for version in versions[name]
            if not is_version(version)
        ]
        if len(versions[name]) > 1:
            lines.append(
                f"{name} is listed with several versions ({', '.join(versions[name])}): all were checked"
            )
    return tuple(lines)


def _unknown_releases(versions: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a note for each stable version of vLLM that was not a known release when this package
    was made."""
    known = known_releases("vllm")
    for version in map(version_of, versions.get("vllm", ())):
        release = version and Version(version.public)
        if release is None or release.is_prerelease or release in known or not known:
            continue
        if release > known[-1]:
            yield f"vllm {release} does not exist, or is newer than the newest known release, {known[-1]}"
        elif release >= known[0]:
            yield f"vllm {release} is not a known release"


def _undecided(inventory: Inventory, cases: Iterable[Case]) -> dict[str, tuple[str, ...]]:
    """Return the packages that are missing from a list with vLLM and that decide a case, by case
    id."""
    if not set(VLLM).intersection(inventory.versions):
        return {}
    unknown = {case.id: unknown_packages(inventory, case) for case in cases}
    return {
        case: names
        for case, names in unknown.items()
        if names and not set(names) <= set(inventory.unpinned)
    }


def relevant(inventory: Inventory, cases: Iterable[Case]) -> dict[str, str]:
    """Return the versions of the packages that the cases are about."""
    names = _names(cases)
    return {
        name: " or ".join(versions)
        for name, versions in sorted(inventory.versions.items())
        if name in names
    }


def _match(inventory: Inventory, case: Case) -> AuditMatch | None:
    for versions in _combinations(inventory.versions, _names([case])):
        affected = case.is_affected(versions)
        if affected:
            forms = tuple(
                Form(name, answer.affected, case.variants[name].reason or answer.reason)
                for name in case.variants
                for answer in [case.is_affected(versions, name)]
            )
            decisive = next(
                name for name in (case.affected[0].package, *VLLM_BUILDS) if name in versions
            )
            place = inventory.find(decisive, versions[decisive])
            assert place is not None
            return AuditMatch(case, versions, affected.reason, forms, place)
    return None


def _combinations(
    versions: Mapping[str, tuple[str, ...]], names: set[str]
) -> Iterator[dict[str, str]]:
    present = sorted(names & set(versions))
    rows = itertools.product(*(versions[name] for name in present))
    return (
        dict(zip(present, row, strict=True)) for row in itertools.islice(rows, MAX_COMBINATIONS)
    )


def _names(cases: Iterable[Case]) -> set[str]:
    packages = {condition.package for case in cases for condition in case.affected}
    return packages | set(VLLM_BUILDS) if "vllm" in packages else packages
