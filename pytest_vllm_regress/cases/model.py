"""Cases: one documented failure each, as data. Reading them imports no test module and no vLLM.

The format of ``case.toml`` is ``case_schema.json``; what a schema cannot say (regular expressions, version specifiers,
unique ids) is checked here.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from ..environments.installed import VLLM
from ..errors import CaseFileError, Kind, Part, UsageError
from ..util.documents import load_toml
from ..util.paths import shipped
from ..util.project import check_owner, folders_of_project
from ..util.validation import did_you_mean, problems, shown
from ..util.versions import specifiers_of, version_of
from .control import Control
from .control import faults as control_faults
from .symptom import Symptom

CASE_FILE = "case.toml"
MAX_BYTES = 64 * 1024
NEEDS_CONTROL_LEG = frozenset({Kind.HANG, Kind.CRASH, Kind.ENGINE_DEATH})
"""A failure of these kinds proves something only where the same test without its trigger passes."""
NEEDS_AT_WORK = frozenset({Kind.EXCEPTION, Kind.WRONG_RESULT})
"""Of a case of these kinds a pass or a failure proves something only where its mechanism was at work."""
_SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


@dataclasses.dataclass(frozen=True)
class Affectedness:
    """Whether an installation should show the failure, and the line of ``case.toml`` that decided."""

    affected: bool
    reason: str
    before: bool = False
    """Not affected, because the installed version is lower than any in the range."""

    def __bool__(self) -> bool:
        return self.affected


@dataclasses.dataclass(frozen=True)
class Range:
    """Versions of one distribution. ``package`` is its normalized name, ``specifier`` as the file has it (PEP 440)."""

    package: str
    specifier: str

    def holds(self, versions: Mapping[str, str]) -> Affectedness:
        """Whether the installed version lies in the range. Local parts (+cpu) are cut off, pre-releases count."""
        name, installed = _installed(versions, self.package)
        if installed is None:
            return Affectedness(False, f"not affected: {self.package} is not installed (affected are {self})")
        version = version_of(installed)
        if version is None:
            reason = f"{name} has version {shown(installed)}, which is no PEP 440 version"
            return Affectedness(False, f"not known to be affected: {reason}")
        inside = SpecifierSet(self.specifier).contains(version.public, prereleases=True)
        before = not inside and self._begins_after(version)
        where = "in" if inside else "before" if before else "not in"
        state = f"{name} {installed} is {where} {self.specifier or 'any version'}"
        return Affectedness(inside, f"{'affected' if inside else 'not affected'}: {state}", before)

    def _begins_after(self, version: Version) -> bool:
        lower = [each.version for each in SpecifierSet(self.specifier) if each.operator in (">=", ">", "~=", "==")]
        return any(version < Version(each.removesuffix(".*")) for each in lower)

    def first_outside(self) -> str | None:
        """The first version above the range, in words, when the range has an upper bound."""
        for specifier in SpecifierSet(self.specifier):
            if specifier.operator == "<":
                return f"{self.package} {specifier.version}"
            if specifier.operator == "<=":
                return f"{self.package} after {specifier.version}"
        return None

    def __str__(self) -> str:
        return f"{self.package} {self.specifier}".rstrip()


@dataclasses.dataclass(frozen=True)
class Variant:
    """A form of the failure. ``never``: it shows in no installation; else ``ranges`` narrow the case's."""

    name: str
    never: bool
    ranges: tuple[Range, ...] = ()
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class EvidenceEnvironments:
    """Names of environments that must show the failure, and that must not. A plain run uses the first of each."""

    affected: tuple[str, ...]
    fixed: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Case:
    """One documented failure. ``path`` is its case.toml."""

    id: str
    title: str
    family: str
    upstream: tuple[str, ...]
    devices: tuple[str, ...]
    affected: tuple[Range, ...]
    symptom: Symptom
    evidence: EvidenceEnvironments
    path: Path
    fixed_by: tuple[str, ...] = ()
    broken_by: tuple[str, ...] = ()
    variants: Mapping[str, Variant] = dataclasses.field(default_factory=lambda: MappingProxyType({}), hash=False)
    control: Control = dataclasses.field(default_factory=Control)
    workaround: str = ""
    racy: bool = False
    notes: str = ""
    since: str = ""

    @property
    def directory(self) -> Path:
        """Where the case's tests, probe and story are."""
        return self.path.parent

    def is_affected(self, versions: Mapping[str, str], variant: str | None = None) -> Affectedness:
        """Whether an installation (distribution name to version) should show the failure.

        Raises ``UsageError`` for a variant that the case does not have.
        """
        narrowed = self.variant(variant) if variant is not None else None
        if narrowed is not None and narrowed.never:
            return Affectedness(False, f"not affected: variant {narrowed.name} never is{_because(narrowed.reason)}")
        decided = [each.holds(versions) for each in self.affected]
        if narrowed is not None:
            extra = [each.holds(versions) for each in narrowed.ranges]
            note = f" (variant {narrowed.name}{_because(narrowed.reason)})"
            decided += [dataclasses.replace(each, reason=each.reason + note) for each in extra]
        for each in decided:
            if not each:
                return each
        return Affectedness(True, "affected: " + "; ".join(each.reason.removeprefix("affected: ") for each in decided))

    def variant(self, name: str) -> Variant:
        """The variant called ``name``. Raises ``UsageError`` naming the ones there are."""
        if name not in self.variants:
            known = ", ".join(self.variants) or "none"
            hint = did_you_mean(name, self.variants)
            raise UsageError(f"{self.path}: no [variants.{name}].{hint} There are: {known}")
        return self.variants[name]

    def first_fixed(self) -> str | None:
        """The first version without the failure, in words, as far as upper bounds tell it."""
        found = [text for text in (each.first_outside() for each in self.affected) if text is not None]
        return " or ".join(found) or None

    def affected_text(self) -> str:
        """The ranges on one line."""
        return " and ".join(map(str, self.affected))


def load_case(path: Path) -> Case:
    """Read one case.toml. Raises ``CaseFileError`` that lists everything wrong with it."""
    document = _parse(path)
    found = problems(document, "case_schema.json") or [
        *_bad_pattern(document),
        *_bad_specifiers(document),
        *_bad_control(document),
    ]
    if found:
        raise CaseFileError(_message(path, found))
    return _case(document, path)


@functools.lru_cache(maxsize=256)
def load_case_for(test_file: Path) -> Case:
    """The case of a test module: case.toml beside it. Read once per process."""
    path = test_file.with_name(CASE_FILE)
    if not path.exists():
        raise CaseFileError(
            f"{test_file}: no {CASE_FILE} beside it, which vllm_case needs. `vllm-regress new` writes one"
        )
    return load_case(path)


def find_cases(root: Path) -> tuple[Case, ...]:
    """Every root/<slug>/case.toml, by id. Raises ``CaseFileError`` that lists the faults of all files."""
    if not root.is_dir():
        raise UsageError(f"{root}: no such directory of cases. Give one that holds <slug>/{CASE_FILE} with --cases DIR")
    cases: list[Case] = []
    faults: list[str] = []
    for directory in sorted(path for path in root.iterdir() if os.path.lexists(path / CASE_FILE)):
        try:
            _check_place(directory, root)
            cases.append(load_case(directory / CASE_FILE))
        except CaseFileError as error:
            faults.append(str(error))
    faults += _duplicates(cases)
    if faults:
        raise CaseFileError("\n".join(faults))
    return tuple(sorted(cases, key=lambda case: case.id))


def default_cases_dir(start: Path | None = None) -> Path:
    """cases/ of the project around ``start`` (the working directory), else the cases that came with the package.

    Raises ``UsageError`` for cases that belong to another user: their tests and probes would be run.
    """
    here = (start or Path.cwd()).absolute()
    for candidate in (folder / "cases" for folder in folders_of_project(here)):
        found = sorted(candidate.glob(f"*/{CASE_FILE}"))
        if found:
            for path in (candidate, *(part for file in found for part in (file.parent, file))):
                check_owner(path, "If these cases are what you want, name their directory with --cases DIR")
            return candidate
    candidate = shipped("cases")
    if any(candidate.glob(f"*/{CASE_FILE}")):
        return candidate
    raise UsageError(
        f"no cases found: no cases/*/{CASE_FILE} in {here} or its project, and none in the package. "
        "Give their directory with --cases DIR"
    )


def select(cases: Iterable[Case], ids: Iterable[str]) -> tuple[Case, ...]:
    """The cases with these ids, all when none is named. Raises ``UsageError`` for an unknown id."""
    known = {case.id: case for case in cases}
    wanted = list(dict.fromkeys(ids)) or list(known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        each = "; ".join(f"{shown(name)}.{did_you_mean(name, known)}" for name in unknown)
        raise UsageError(f"no such case: {each} Known: {', '.join(known) or 'none'}")
    return tuple(known[name] for name in wanted)


def _parse(path: Path) -> dict[str, Any]:
    return load_toml(path, MAX_BYTES, what="a case file", error=CaseFileError)


def _bad_pattern(document: Mapping[str, Any]) -> list[str]:
    pattern = document["symptom"]["pattern"]
    try:
        re.compile(pattern, re.MULTILINE)
    except re.error as error:
        place = "" if error.pos is None else f" at position {error.pos}"
        return [f"symptom.pattern = {shown(pattern)}: not a regular expression: {error.msg}{place}"]
    except (RecursionError, OverflowError) as error:
        return [f"symptom.pattern = {shown(pattern)}: not a usable regular expression: {error}"]
    return []


def _bad_control(document: Mapping[str, Any]) -> list[str]:
    if found := control_faults(document["control"]) if "control" in document else []:
        return found
    kinds = sorted(NEEDS_CONTROL_LEG.intersection(_several(document["symptom"]["kind"])))
    if kinds and not document.get("control", {}).get("omits"):
        return [
            f"control: missing; {' or '.join(kinds)} needs a control leg: omits says which single thing it leaves out, "
            "EngineSpec fields or the fixture vllm_leg leave it out, and the same test must pass then"
        ]
    return []


def _several(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _bad_specifiers(document: Mapping[str, Any]) -> list[str]:
    tables = {"affected": document["affected"]}
    for name, variant in document.get("variants", {}).items():
        if variant["affected"] is not False:
            tables[f"variants.{name}.affected"] = variant["affected"]
    return [
        f"{key}.{package} = {shown(specifier)}: not a PEP 440 specifier; allowed is for example '>=0.7,<0.8.5'"
        for key, table in tables.items()
        for package, specifier in table.items()
        if specifiers_of(specifier) is None
    ]


def _case(document: Mapping[str, Any], path: Path) -> Case:
    symptom = document["symptom"]
    return Case(
        id=document["id"],
        title=document["title"],
        family=document["family"],
        upstream=tuple(document["upstream"]),
        devices=tuple(document["devices"]),
        affected=_ranges(document["affected"]),
        symptom=Symptom(
            tuple(map(Kind, _several(symptom["kind"]))),
            _several(symptom["phase"]),
            symptom["pattern"],
            tuple(map(Part, _several(symptom.get("where", [])))),
        ),
        evidence=EvidenceEnvironments(tuple(document["evidence"]["affected"]), tuple(document["evidence"]["fixed"])),
        path=path,
        fixed_by=tuple(document.get("fixed-by", ())),
        broken_by=tuple(document.get("broken-by", ())),
        variants=MappingProxyType({name: _variant(name, each) for name, each in document.get("variants", {}).items()}),
        control=Control.from_table(document.get("control", {})),
        **{name: document[name] for name in ("workaround", "racy", "notes", "since") if name in document},
    )


def _variant(name: str, table: Mapping[str, Any]) -> Variant:
    affected = table["affected"]
    return Variant(name, affected is False, () if affected is False else _ranges(affected), table.get("reason", ""))


def _ranges(table: Mapping[str, str]) -> tuple[Range, ...]:
    return tuple(Range(canonicalize_name(package), specifier) for package, specifier in table.items())


def _installed(versions: Mapping[str, str], package: str) -> tuple[str, str | None]:
    normalized: dict[str, str] = {canonicalize_name(name): version for name, version in versions.items()}
    names = VLLM if package == "vllm" else (package,)
    return next(((name, normalized[name]) for name in names if name in normalized), (package, None))


def _check_place(directory: Path, root: Path) -> None:
    if not _SLUG.fullmatch(directory.name):
        allowed = "1 to 64 of a-z, 0-9 and -, starting with a letter or a digit"
        raise CaseFileError(f"{directory}: the directory's name is not a slug; allowed is {allowed}")
    if not (directory / CASE_FILE).resolve().is_relative_to(root.resolve()):
        raise CaseFileError(f"{directory / CASE_FILE}: leads out of {root} through a link; put the file itself there")


def _duplicates(cases: Iterable[Case]) -> list[str]:
    seen: dict[str, Path] = {}
    found = []
    for case in cases:
        if case.id in seen:
            found.append(f"{case.path}: id = {case.id!r}: {seen[case.id]} has the same id; ids are unique")
        seen.setdefault(case.id, case.path)
    return found


def _message(path: Path, found: list[str]) -> str:
    return "\n".join(f"{path}: {line}" for line in found)


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
