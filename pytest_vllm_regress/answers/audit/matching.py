"""From versions to findings: which cases have ranges that hold for the packages of an inventory.

Which failures does an audit report? Those whose ranges hold for the pinned versions (``find``); what
the versions leave open is a note (``notes``).
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from ...cases.model import Case, fields_of
from ...environments.installed import VLLM, VLLM_BUILDS, Interpreter, Package
from ...environments.releases import known_releases
from ...errors import Kind, UsageError
from ...util.versions import is_version, version_of


class Severity(enum.StrEnum):
    """The gravest first."""

    ENGINE_DEATH = "engine death"
    """A process of the engine ends, and all requests are lost."""
    HANG = "hang"
    """A wait that never ends."""
    WRONG_RESULT = "wrong result"
    """A wrong answer without an error."""
    REFUSED = "refused"
    """A valid request is answered with an error."""
    LEAK = "leak"
    """A resource is not released."""

    @property
    def rank(self) -> int:
        """0 for the most severe."""
        return list(Severity).index(self)


_BY_KIND = {
    Kind.ENGINE_DEATH: Severity.ENGINE_DEATH,
    Kind.CRASH: Severity.ENGINE_DEATH,
    Kind.HANG: Severity.HANG,
    Kind.WRONG_RESULT: Severity.WRONG_RESULT,
    Kind.EXCEPTION: Severity.REFUSED,
}
_BY_FAMILY = {"leak": Severity.LEAK, "wrong-status": Severity.REFUSED}
"""Families that override the symptom's kind: their tests fail with an assertion, but the answer is
not wrong."""


def severity(case: Case) -> Severity:
    """Return the severity of the gravest kind of ``case``."""
    by_kind = (_BY_KIND[kind] for kind in case.symptom.kinds)
    return _BY_FAMILY.get(case.family) or min(by_kind, key=lambda candidate: candidate.rank)


def case_fields(case: Case, *names: str) -> dict[str, Any]:
    """Return the id of a case and these of its fields as plain values, its severity among them."""
    fields = {**fields_of(case), "severity": severity(case).value}
    return {"case": case.id, **{name: fields[name] for name in names}}


MAX_COMBINATIONS = 256
"""Of versions of packages that a lock lists several times."""
_FIELDS = (
    *("title", "family", "severity", "affected", "devices", "racy"),
    *("first_fixed", "workaround", "upstream", "fixed_by"),
)
MAX_NAMED = 3
"""Maximum number of cases that a note names."""


@dataclass(frozen=True)
class Inventory:
    """The packages of one target.

    ``source``: the target as the user named it.
    ``unpinned``: requirements without a version, by package.
    ``unread``: places of lines that are neither a requirement nor an option.
    ``release``: the release of vLLM, if the user named one instead of packages.
    ``left_out``: included files that were not read, and why.
    ``ranges``: specifiers of requirements without an exact version, by package; empty for any.
    """

    source: str
    packages: tuple[Package, ...]
    unpinned: Mapping[str, str] = field(default_factory=dict)
    interpreter: Interpreter | None = None
    unread: tuple[str, ...] = ()
    release: str = ""
    left_out: tuple[str, ...] = ()
    ranges: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def versions(self) -> dict[str, tuple[str, ...]]:
        """Versions by name. A lock may have several versions of a package."""
        by_name: dict[str, dict[str, None]] = {}
        for package in self.packages:
            by_name.setdefault(package.name, {})[package.version] = None
        return {name: tuple(versions) for name, versions in by_name.items()}

    @property
    def is_partial(self) -> bool:
        """Whether packages that it does not name may be installed where vLLM runs.

        That is so without vLLM, and for a list of direct requirements, which does not name torch
        although vLLM requires it.
        """
        if {*self.versions, *self.unpinned}.isdisjoint(VLLM):
            return True
        return self.interpreter is None and "torch" not in self.versions

    @classmethod
    def of(cls, interpreter: Interpreter, source: str) -> Inventory:
        """Return the packages that the interpreter would import."""
        return cls(source, interpreter.imported(), interpreter=interpreter)


@dataclass(frozen=True)
class Form:
    """A variant of the failure: whether this combination of versions shows it, and why."""

    name: str
    shows: bool
    reason: str


@dataclass(frozen=True)
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
        symptom = self.case.symptom
        return {
            **case_fields(self.case, *_FIELDS),
            "installed": self.versions,
            "reason": self.reason,
            "observed": self.observed,
            "symptom": {name: getattr(symptom, name) for name in ("kind", "phases", "pattern")},
            "variants": self.forms,
        }


def find(inventory: Inventory, cases: Iterable[Case]) -> tuple[AuditMatch, ...]:
    """Return the documented failures of ``inventory``, the gravest first, then by id."""
    findings = filter(None, (_match(inventory, case) for case in cases))
    return tuple(sorted(findings, key=lambda match: (severity(match.case).rank, match.case.id)))


def _match(inventory: Inventory, case: Case) -> AuditMatch | None:
    present = sorted(_names([case]) & set(inventory.versions))
    rows = itertools.product(*(inventory.versions[name] for name in present))
    for row in itertools.islice(rows, MAX_COMBINATIONS):
        versions = dict(zip(present, row, strict=True))
        if affected := case.is_affected(versions):
            forms = tuple(
                Form(name, answer.affected, variant.reason or answer.reason)
                for name, variant in case.variants.items()
                for answer in [case.is_affected(versions, name)]
            )
            packages = (case.affected[0].package, *VLLM_BUILDS)
            name = next(name for name in packages if name in versions)
            decisive = next(
                p for p in inventory.packages if (p.name, p.version) == (name, versions[name])
            )
            return AuditMatch(case, versions, affected.reason, forms, decisive)
    return None


def can_show(inventory: Inventory, cases: Iterable[Case]) -> bool:
    """Return whether ``inventory`` has vLLM, or all packages of at least one case, whatever their
    versions."""
    present = {*inventory.versions, *inventory.unpinned}
    return bool(present.intersection(VLLM)) or any(
        present.issuperset(condition.package for condition in case.affected) for case in cases
    )


NO_VLLM = "no-vllm"
"""What is ignored if a list without vLLM is no error."""


def require_checkable(inventories: Sequence[Inventory], cases: Sequence[Case]) -> None:
    """Raise ``UsageError`` if no inventory has what a case is about, so that an answer would say
    nothing."""
    if not any(can_show(inventory, cases) for inventory in inventories):
        sources = ", ".join(inventory.source for inventory in inventories)
        raise UsageError(
            f"{sources}: no vLLM in it, so that nothing was checked. Give a list or lock file that has it, vllm==VERSION, "
            f"or an interpreter with --env"
        )


def unknown_packages(inventory: Inventory, case: Case) -> tuple[str, ...]:
    """Return the packages whose unknown versions decide whether ``inventory`` has the failure; none
    if the known versions exclude it."""
    versions = {name: listed[0] for name, listed in inventory.versions.items()}
    present = {*versions, *({"vllm"} if set(VLLM).intersection(versions) else ())}
    for condition in case.affected:
        if condition.package in present and not condition.check(versions):
            return ()
    absent = [condition.package for condition in case.affected if condition.package not in present]
    return tuple(name for name in absent if name in inventory.unpinned or inventory.is_partial)


def relevant(inventory: Inventory, cases: Iterable[Case]) -> dict[str, str]:
    """Return the versions of the packages that the cases are about."""
    names = sorted(_names(cases) & set(inventory.versions))
    return {name: " or ".join(inventory.versions[name]) for name in names}


def notes(
    inventory: Inventory, cases: Sequence[Case], decided: Collection[Case] = ()
) -> Iterator[str]:
    """Yield what could not be decided: packages of the cases that are missing, unpinned, or have
    an invalid version. ``decided``: cases that need no version, because a run was recorded."""
    names, source, versions = _names(cases), inventory.source, inventory.versions
    if not can_show(inventory, cases):
        if names.isdisjoint({*versions, *inventory.unpinned}):
            listed = ", ".join(sorted(names - set(VLLM_BUILDS)))
            yield f"{source} has none of the packages that the cases are about ({listed})"
        else:
            yield f"{source} has no vLLM, and no case is about its other packages alone: nothing was checked"
    if inventory.unread:
        count = len(inventory.unread)
        problem = "lines are not requirements" if count > 1 else "line is not a requirement"
        yield f"{source}: {count} {problem} and not counted: {inventory.unread[0]}"
    yield from inventory.left_out
    for name in sorted(names & set(inventory.unpinned) - set(versions)):
        yield f"{inventory.unpinned[name]} has no version, so that nothing is known about {name}: give a lock file, or the interpreter itself"
    missing = {
        case.id: unknown
        for case in cases
        if case not in decided
        and not inventory.unpinned.keys() >= set(unknown := unknown_packages(inventory, case))
    }
    if missing and not set(VLLM).isdisjoint(versions):
        packages = ", ".join(sorted({name for unknown in missing.values() for name in unknown}))
        more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
        failures = ", ".join(list(missing)[:MAX_NAMED])
        yield f"{source} gives no version of {packages}, so {failures}{more} could not be checked: give a lock file, or the interpreter itself"
    yield from _unknown_releases(versions.get("vllm", ()))
    for name in sorted(names & set(versions)):
        for version in versions[name]:
            if not is_version(version):
                yield f"{name} has version {version!r}, which is not a PEP 440 version: not known to be affected"
        if len(versions[name]) > 1:
            yield f"{name} is listed with several versions ({', '.join(versions[name])}): all were checked"


def _unknown_releases(versions: Iterable[str]) -> Iterator[str]:
    """Yield a note for each stable version of vLLM that was not a known release when this package
    was made."""
    known = known_releases("vllm")
    for version in map(version_of, versions):
        release = version and Version(version.public)
        if release is None or release.is_prerelease or release in known or not known:
            continue
        if release > known[-1]:
            yield f"vllm {release} does not exist, or is newer than the newest known release, {known[-1]}"
        elif release >= known[0]:
            yield f"vllm {release} is not a known release"


def _names(cases: Iterable[Case]) -> set[str]:
    packages = {condition.package for case in cases for condition in case.affected}
    return packages | set(VLLM_BUILDS) if "vllm" in packages else packages
