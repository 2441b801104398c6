"""Which documented failures an inventory has: its versions matched with the cases' affected ranges."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..cases.model import Case
from ..environments.installed import VLLM_BUILDS, Package
from ..util.versions import is_version
from .inventory import Inventory
from .severity import severity

MAX_COMBINATIONS = 256


@dataclasses.dataclass(frozen=True)
class Form:
    """A variant of the failure: whether this combination shows it, and why."""

    name: str
    shows: bool
    reason: str


@dataclasses.dataclass(frozen=True)
class Finding:
    """A documented failure that the combination ``versions`` has. ``package`` is what decided, ``forms`` are the case's variants."""

    case: Case
    versions: Mapping[str, str]
    reason: str
    forms: tuple[Form, ...]
    package: Package

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        case = self.case
        return {
            "case": case.id,
            "title": case.title,
            "family": case.family,
            "severity": severity(case),
            "affected": {each.package: each.specifier for each in case.affected},
            "installed": dict(self.versions),
            "reason": self.reason,
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


def find(inventory: Inventory, cases: Iterable[Case]) -> tuple[Finding, ...]:
    """The documented failures of ``inventory``, in the order of ``cases``."""
    return tuple(found for case in cases if (found := _match(inventory, case)) is not None)


def notes(inventory: Inventory, cases: Iterable[Case]) -> tuple[str, ...]:
    """What could not be decided: packages of the cases that are not there, not pinned, or whose version says nothing."""
    names = _names(cases)
    versions = inventory.versions
    said = []
    if not names & {*versions, *inventory.unpinned}:
        said.append(
            f"{inventory.source} has none of the packages that the cases are about ({', '.join(sorted(names - set(VLLM_BUILDS)))})"
        )
    if inventory.unread:
        count = len(inventory.unread)
        said.append(
            f"{inventory.source}: {count} line{'s are' if count > 1 else ' is'} no requirement and not counted: {inventory.unread[0]}"
        )
    for name in sorted(names & set(inventory.unpinned)):
        if name not in versions:
            said.append(
                f"{inventory.unpinned[name]} names no version, so nothing is known about {name}: give a lock, or the interpreter itself"
            )
    for name in sorted(names & set(versions)):
        said += [
            f"{name} has version {each!r}, which is no PEP 440 version: not known to be affected"
            for each in versions[name]
            if not is_version(each)
        ]
        if len(versions[name]) > 1:
            said.append(f"{name} is named with several versions ({', '.join(versions[name])}): each was looked at")
    return tuple(said)


def relevant(inventory: Inventory, cases: Iterable[Case]) -> dict[str, str]:
    """Versions of the packages that the cases are about."""
    names = _names(cases)
    return {name: " or ".join(versions) for name, versions in sorted(inventory.versions.items()) if name in names}


def _match(inventory: Inventory, case: Case) -> Finding | None:
    for versions in _combinations(inventory.versions, _names([case])):
        affected = case.is_affected(versions)
        if affected:
            forms = tuple(
                Form(name, each.affected, case.variants[name].reason or each.reason)
                for name in case.variants
                for each in [case.is_affected(versions, name)]
            )
            decisive = next(name for name in (case.affected[0].package, *VLLM_BUILDS) if name in versions)
            place = inventory.find(decisive, versions[decisive])
            assert place is not None
            return Finding(case, versions, affected.reason, forms, place)
    return None


def _combinations(versions: Mapping[str, tuple[str, ...]], names: set[str]) -> Iterator[dict[str, str]]:
    present = sorted(names & set(versions))
    rows = itertools.product(*(versions[name] for name in present))
    return (dict(zip(present, row, strict=True)) for row in itertools.islice(rows, MAX_COMBINATIONS))


def _names(cases: Iterable[Case]) -> set[str]:
    named = {each.package for case in cases for each in case.affected}
    return named | set(VLLM_BUILDS) if "vllm" in named else named
