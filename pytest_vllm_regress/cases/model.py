"""Cases: one documented failure each, as data.

Forms of a failure that show in fewer versions, or in none, are variants in the case file, with a
reason, rather than conditions in tests.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from ..environments.installed import VLLM
from ..errors import Kind, Part, UsageError
from ..util import patterns
from ..util.validation import did_you_mean, format_value
from ..util.versions import alternatives_of, version_of
from .observation import Match, Observation

NEEDS_CONTROL_LEG = frozenset({Kind.HANG, Kind.CRASH, Kind.ENGINE_DEATH})
"""Kinds whose failure proves something only if the same test passes without its trigger."""
NEEDS_AT_WORK = frozenset({Kind.EXCEPTION, Kind.WRONG_RESULT})
"""Kinds whose verdict proves something only if the mechanism of the case was at work."""

SPECIFIER_HELP = "not a PEP 440 specifier; allowed is for example '>=0.7,<0.8.5', or several with || between them"


WHERE: Mapping[Kind, tuple[Part, ...]] = MappingProxyType(
    {
        Kind.EXCEPTION: (Part.EXCEPTION,),
        Kind.WRONG_RESULT: (Part.ASSERTION,),
        Kind.HANG: (Part.STACKS, Part.LOG),
        Kind.CRASH: (Part.EXIT, Part.EXCEPTION, Part.LOG),
        Kind.ENGINE_DEATH: (Part.EXCEPTION, Part.LOG),
    }
)
"""Parts that are searched if the case names none: few, so that nothing else can prove it."""


@dataclass(frozen=True)
class Symptom:
    """What a failure looks like. ``kinds`` and ``phases`` (import, start, ready, request, stop,
    probe) are not empty.

    ``where``: the parts that are searched for the pattern, in this order; empty for those of
    ``WHERE``. ``all``: further patterns of which each must match in one of them.
    """

    kinds: tuple[Kind, ...]
    phases: tuple[str, ...]
    pattern: str
    where: tuple[Part, ...] = ()
    all: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The kinds in words."""
        return " or ".join(self.kinds)

    def parts_for(self, kind: Kind) -> tuple[Part, ...]:
        """Return the parts that are searched for a failure of this kind."""
        return self.where or WHERE.get(kind, ())

    def is_shown_by(self, observed: Observation) -> bool:
        """Return whether kind, phase and text are those of the symptom."""
        return (
            observed.kind in self.kinds
            and observed.phase in self.phases
            and self.find(observed) is not None
        )

    def find(self, observed: Observation) -> Match | None:
        """Return the first match of the pattern in the parts that are searched, unless one of the
        further patterns has none.

        Raises ``PatternError`` where a pattern cannot be searched within ``patterns.SECONDS``.
        """
        matches = [self._find(pattern, observed) for pattern in (self.pattern, *self.all)]
        return matches[0] if None not in matches else None

    def missing(self, observed: Observation) -> list[str]:
        """Return the patterns without a match."""
        wanted = (self.pattern, *self.all)
        return [pattern for pattern in wanted if self._find(pattern, observed) is None]

    def _find(self, pattern: str, observed: Observation) -> Match | None:
        for part in self.parts_for(observed.kind):
            text = observed.parts.get(part, "")
            if (span := patterns.search(pattern, text)) is not None:
                start, end = span
                line = text[text.rfind("\n", 0, start) + 1 :].partition("\n")[0]
                number = text.count("\n", 0, start) + 1
                return Match(part, number, line[:500], text[start:end][:500])
        return None


@dataclass(frozen=True)
class LogText:
    """What a server or a client prints when the failure happens: the table ``[symptom.log]``.

    No verdict depends on it. ``seen``: the report that has it, if no recorded observation does.
    """

    pattern: str
    seen: str = ""

    def is_in(self, observed: Observation) -> bool:
        """Return whether an observation has the text, in any part."""
        return any(patterns.search(self.pattern, text) for text in observed.parts.values())


@dataclass(frozen=True)
class Control:
    """The table ``[control]`` of a case.

    ``omits``: the single thing that the control leg leaves out; empty if the case declares no
    control leg. ``none``: why no positive control is possible. ``changes``: EngineSpec fields of
    the control leg (mappings are merged into the subject's); ``probe``: its probe arguments.
    """

    omits: str = ""
    none: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    probe: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def declared(self) -> bool:
        """Whether every failure of the case is followed by a control leg."""
        return bool(self.omits)


@dataclass(frozen=True)
class Affectedness:
    """Whether an installation should show the failure, and the range of ``case.toml`` that decided."""

    affected: bool
    reason: str
    below_range: bool = False
    """Not affected, because the installed version is lower than any in the range."""

    def __bool__(self) -> bool:
        return self.affected


@dataclass(frozen=True)
class Range:
    """Versions of one distribution. ``package``: its normalized name.

    ``specifier``: PEP 440, as in the file; alternatives, of which one must match, are separated by
    ``||``.
    """

    package: str
    specifier: str

    @property
    def alternatives(self) -> tuple[SpecifierSet, ...]:
        """The specifiers of which one must match, in the order of the file."""
        return _alternatives(self.specifier)

    def contains(self, version: Version | str) -> bool:
        """Return whether a version is in the range. Pre-releases count."""
        return any(
            specifiers.contains(version, prereleases=True) for specifiers in self.alternatives
        )

    def check(self, versions: Mapping[str, str]) -> Affectedness:
        """Return whether the installed version is in the range.

        Local parts (+cpu) are ignored, pre-releases count.
        """
        name, installed = _installed(versions, self.package)
        if installed is None:
            return Affectedness(
                False, f"not affected: {self.package} is not installed (affected are {self})"
            )
        return self._compare(name, installed)

    def is_installed(self, versions: Mapping[str, str]) -> bool:
        """Return whether an installation has the distribution in any version."""
        return _installed(versions, self.package)[1] is not None

    @functools.lru_cache(maxsize=16384)  # noqa: B019 (bounded; pages and advice compare every range with every release)
    def _compare(self, name: str, installed: str) -> Affectedness:
        version = version_of(installed)
        if version is None:
            reason = f"{name} has version {format_value(installed)}, which is not a PEP 440 version"
            return Affectedness(False, f"not known to be affected: {reason}")
        # ``contains`` would parse a string again.
        inside = self.contains(version.public if version.local else version)
        below_range = not inside and self._begins_after(version)
        where = "in" if inside else "below" if below_range else "not in"
        state = f"{name} {installed} is {where} {self.specifier or 'any version'}"
        return Affectedness(
            inside, f"{'affected' if inside else 'not affected'}: {state}", below_range
        )

    def _begins_after(self, version: Version) -> bool:
        return all(
            any(
                version < Version(part.version.removesuffix(".*"))
                for part in specifiers
                if part.operator in (">=", ">", "~=", "==")
            )
            for specifiers in self.alternatives
        )

    def first_outside(self) -> str | None:
        """Return the first version above the range (above its last alternative), in words, if the
        range has an upper bound."""
        for specifier in self.alternatives[-1]:
            if specifier.operator == "<":
                return f"{self.package} {specifier.version}"
            if specifier.operator == "<=":
                return f"{self.package} after {specifier.version}"
        return None

    def __str__(self) -> str:
        return f"{self.package} {self.specifier}".rstrip()


@dataclass(frozen=True)
class Variant:
    """What is a variant of a case? A form of the failure that never shows, or in narrower ranges;
    ``vllm_case(id, variant=...)`` marks its tests.

    ``never``: no installation shows it; otherwise ``ranges`` narrow those of the case.
    """

    name: str
    never: bool
    ranges: tuple[Range, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class EvidenceEnvironments:
    """Environments that must show the failure, and that must not.

    A plain run uses the first of each.
    """

    affected: tuple[str, ...]
    fixed: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """One documented failure. ``path``: its case.toml."""

    id: str
    title: str
    family: str
    upstream: tuple[str, ...]
    devices: tuple[str, ...]
    affected: tuple[Range, ...]
    symptom: Symptom
    evidence: EvidenceEnvironments
    path: Path
    log: LogText | None = None
    fixed_by: tuple[str, ...] = ()
    broken_by: tuple[str, ...] = ()
    variants: Mapping[str, Variant] = field(default_factory=dict, hash=False)
    control: Control = field(default_factory=Control)
    workaround: str = ""
    racy: bool = False
    notes: str = ""
    since: str = ""
    related: tuple[str, ...] = ()

    @property
    def directory(self) -> Path:
        """Return the directory of the case's tests, probe and README."""
        return self.path.parent

    def is_affected(self, versions: Mapping[str, str], variant: str | None = None) -> Affectedness:
        """Return whether an installation (distribution name to version) should show the failure.

        Raises ``UsageError`` if the case has no such variant.
        """
        narrowed = self.variant(variant) if variant is not None else None
        if narrowed is not None and narrowed.never:
            return Affectedness(
                False,
                f"not affected: variant {narrowed.name} never fails{_because(narrowed.reason)}",
            )
        checked = [affected.check(versions) for affected in self.affected]
        if narrowed is not None:
            extra = [affected.check(versions) for affected in narrowed.ranges]
            note = f" (variant {narrowed.name}{_because(narrowed.reason)})"
            checked += [replace(result, reason=result.reason + note) for result in extra]
        for result in checked:
            if not result:
                return result
        return Affectedness(
            True,
            "affected: "
            + "; ".join(result.reason.removeprefix("affected: ") for result in checked),
        )

    def can_show(self, versions: Mapping[str, str], variant: str | None = None) -> bool:
        """Return whether a test of this variant decides about an installation: whether it would
        fail there if the failure existed.

        A variant that never fails, or not in these versions, passes with and without the failure.
        """
        if variant is None:
            return True
        narrowed = self.variant(variant)
        return not narrowed.never and all(own.check(versions) for own in narrowed.ranges)

    def may_share_failure_with(self, other: Case) -> bool:
        """Return whether both may show one failure: they have a report in common, or one of them
        names the other as ``related``."""
        named = other.id in self.related or self.id in other.related
        return named or not set(self.upstream).isdisjoint(other.upstream)

    def variant(self, name: str) -> Variant:
        """Return the variant called ``name``.

        Raises ``UsageError`` that lists the existing ones.
        """
        if name not in self.variants:
            known = ", ".join(self.variants) or "none"
            hint = did_you_mean(name, self.variants)
            raise UsageError(
                f"{self.path}: there is no [variants.{name}].{hint} Existing variants: {known}"
            )
        return self.variants[name]

    def first_fixed(self) -> str | None:
        """Return the first version without the failure, in words, if the ranges have upper bounds."""
        bounds = [affected.first_outside() for affected in self.affected]
        return " or ".join(bound for bound in bounds if bound is not None) or None

    def affected_text(self) -> str:
        """Return the ranges on one line."""
        return " and ".join(map(str, self.affected))


def fields_of(case: Case) -> dict[str, Any]:
    """Return all fields of a case as plain values, for ``list`` and ``show``."""
    symptom, control = case.symptom, case.control
    controls = {
        "omits": control.omits,
        "none": control.none,
        **control.changes,
        "probe": dict(control.probe),
    }
    return {
        **{name: getattr(case, name) for name in ("id", "title", "family")},
        "affected": _by_package(case.affected),
        "first_fixed": case.first_fixed(),
        "since": case.since,
        **{
            name: list(getattr(case, name))
            for name in ("upstream", "fixed_by", "broken_by", "related", "devices")
        },
        "symptom": {
            "kinds": list(symptom.kinds),
            "phases": list(symptom.phases),
            "pattern": symptom.pattern,
            "all": list(symptom.all),
            "where": {kind.value: list(symptom.parts_for(kind)) for kind in symptom.kinds},
            "log": case.log.pattern if case.log else "",
        },
        "variants": {
            name: {
                "affected": False if variant.never else _by_package(variant.ranges),
                "reason": variant.reason,
            }
            for name, variant in case.variants.items()
        },
        "control": {name: value for name, value in controls.items() if value not in ("", {})},
        "evidence": {"affected": list(case.evidence.affected), "fixed": list(case.evidence.fixed)},
        **{name: getattr(case, name) for name in ("workaround", "racy", "notes")},
        "path": str(case.path),
    }


def _by_package(ranges: Iterable[Range]) -> dict[str, str]:
    return {affected.package: affected.specifier for affected in ranges}


@functools.lru_cache(maxsize=1024)
def _alternatives(text: str) -> tuple[SpecifierSet, ...]:
    alternatives = alternatives_of(text)
    if alternatives is None:  # case files are checked when they are read
        raise UsageError(f"{format_value(text)}: {SPECIFIER_HELP}")
    return alternatives


def _installed(versions: Mapping[str, str], package: str) -> tuple[str, str | None]:
    names = VLLM if package == "vllm" else (package,)
    for name in names:
        if name in versions:
            return name, versions[name]
    for installed, version in versions.items():
        if canonicalize_name(installed) in names:
            return str(canonicalize_name(installed)), version
    return package, None


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
