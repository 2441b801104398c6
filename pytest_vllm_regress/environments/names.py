"""Resolve the name of an environment to its recipe: listed, derived from a release, or source code
over a release."""

from __future__ import annotations

import contextlib
import datetime
import difflib
import functools
import logging
from collections.abc import Iterator
from dataclasses import replace

from packaging.version import Version

from ..errors import BuildError, UsageError
from ..util.validation import format_value
from . import bases
from .installed import GRAMMARS
from .locks import release_date
from .recipes import CommitBuild, Overlay, Recipe, find_file, load
from .releases import known_releases, newest_release, releases
from .sources import Source, SourceName, find_source, names_interpreter, parse_name, wheel_index

CLOSE = 3
"""Number of similar releases in a message: as many as a reader compares."""
logger = logging.getLogger("vllm_regress.environments")
_sources_of_this_run: dict[str, Recipe] | None = None


@contextlib.contextmanager
def sources_looked_up_once() -> Iterator[None]:
    """Meanwhile each name with source code keeps the recipe that it had first: a run is about one
    state of a work tree, and asking git again for each case takes longer than the cases."""
    global _sources_of_this_run
    before = _sources_of_this_run
    _sources_of_this_run = {} if before is None else before
    try:
        yield
    finally:
        _sources_of_this_run = before


def resolve(name: str) -> Recipe:
    """Return the recipe for ``name``, from the project's environments.toml, the packaged one, or
    source code.

    Raises ``UsageError`` for an unknown name and ``BuildError`` if the base of a commit cannot be
    determined.
    """
    source_name = parse_name(name)
    if source_name is None:
        return load(find_file()).resolve(name)
    known = _sources_of_this_run if _sources_of_this_run is not None else {}
    if name not in known:
        recipe = overlay_recipe(find_source(source_name), source_name)
        logger.info("%s: %s, %s", name, recipe.name, recipe.description)
        known[name] = recipe
    return known[name]


def recipe_named_by_file(name: str) -> Recipe:
    """Return the recipe for a name that a data file contains, such as a finding, where nobody chose
    it on purpose.

    Allowed are the environments of environments.toml, and releases of structured-output packages,
    of which only wheels with hashes are installed. Raises ``UsageError`` for any other name: it
    could choose packages that run their own code.
    """
    recipe = (
        None if "/" in name or parse_name(name) is not None else load(find_file()).resolve(name)
    )
    if recipe is not None and recipe.name in load(find_file()).recipes:
        return recipe
    if recipe is not None and any(name == f"{package}-{recipe.target[1]}" for package in GRAMMARS):
        return replace(recipe, hashed=True)
    raise UsageError(
        f"{format_value(name)} is neither an environment of {find_file()} nor a release of {', '.join(GRAMMARS)}, and a file must not choose "
        "other packages or an interpreter"
    )


def package_without_vllm(name: str) -> str:
    """Return the structured-output package that an environment of that name has instead of vLLM;
    empty if it has vLLM or may not exist."""
    recipe = _named(name)
    package = recipe.target[0] if recipe else ""
    return package if package in GRAMMARS else ""


def versions_named_by(name: str) -> dict[str, str]:
    """Return the versions that an environment of that name pins, by distribution; empty if the name
    alone does not tell."""
    recipe = _named(name)
    return recipe.pins if recipe else {}


def _named(name: str) -> Recipe | None:
    """Return the recipe of a name; None for source code, an interpreter and an unknown name."""
    if names_interpreter(name) or parse_name(name) is not None:
        return None
    try:
        return load(find_file()).resolve(name)
    except UsageError:
        return None


def unavailable_reason(name: str, *, ask: bool = True) -> str:
    """Return why no environment of that name can exist, with similar names; empty if one may exist.

    Asks the package index about releases newer than this package if ``ask`` is set; no answer
    counts as "may exist". Accepts every name with source code.
    """
    if names_interpreter(name) or parse_name(name) is not None:
        return ""
    file = load(find_file())
    try:
        recipe = file.resolve(name)
    except UsageError as error:
        return str(error)
    if name in file.recipes:
        return ""
    for package, version in recipe.pins.items():
        if reason := missing_release(package, version, ask=ask):
            return f"environment {format_value(name)}: {reason}"
    return ""


def missing_release(package: str, version: str, *, ask: bool = True) -> str:
    """Return a message that ``package`` has no release ``version``, with similar ones; empty if it
    may have. ``ask``: see ``unavailable_reason``."""
    wanted = Version(version)
    existing = () if wanted.is_prerelease else known_releases(package)
    if existing and wanted > existing[-1]:
        existing = ()
        with contextlib.suppress(BuildError):  # the index cannot be reached
            existing = releases(package) if ask else ()
    if not existing or wanted in existing:
        return ""
    close = difflib.get_close_matches(
        version, [str(release) for release in reversed(existing)], CLOSE
    )
    hint = f"close to it: {', '.join(close)}" if close else f"the newest is {existing[-1]}"
    return f"{package} has no release {version}; {hint}"


def overlay_recipe(source: Source, name: SourceName) -> Recipe:
    """Return the recipe of source code over its base: the environment in the name, or the release
    that fits best."""
    package = source.project.distribution
    index = wheel_index(source.commit) if package == "vllm" and not source.changed else None
    if index is not None:
        return _with_own_wheel(source, name, index)
    base_name = name.base or f"{package}-{_base_release(source)}"
    base = load(find_file()).resolve(base_name)
    if package == "vllm" and base.device != "sim":
        raise UsageError(
            f"{base_name}+{package}@: a commit's Python code over another release's compiled parts proves nothing on a device that uses them, so "
            f"it runs only on the simulated device, and {base_name} is for {base.device}. Use vllm-X as the base"
        )
    release = pinned_version(base, package)
    code = str(source.tree) if name.is_path else source.commit.id[:10]
    prefix = f"{name.base}+" if name.base else ""
    overlay = Overlay(
        source, base, bases.reported_version(source, release), bases.remarks(source, release)
    )
    return base.variant(
        name=f"{prefix}{package}@{code}",
        description=f"{source.commit.subject[:60]}, over {base.name}",
        overlay=overlay,
    )


def _with_own_wheel(source: Source, name: SourceName, index: str) -> Recipe:
    """Return the recipe with the commit's own wheel, including compiled parts, which runs on every
    device."""
    base = load(find_file()).resolve(name.base or f"vllm-{_base_release(source)}")
    day = bases.requirements_day(source) + datetime.timedelta(days=1)
    return base.variant(
        name=f"{name.base}{name.base and '+'}vllm@{source.commit.id[:10]}",
        exclude_newer=day.isoformat(),
        exclude_newer_package=(),
        description=f"{source.commit.subject[:60]}, its own wheel",
        build=CommitBuild(source.commit.id, index),
    )


def pinned_version(recipe: Recipe, package: str) -> str:
    """Return the version of ``package`` that a recipe pins, else the newest at its target's
    release."""
    if package in recipe.pins:
        return recipe.pins[package]
    newest = newest_release(package, release_date(*recipe.target))
    if newest is None:
        raise UsageError(f"{recipe.name} has no {package}: name a base that has it")
    return newest


@functools.lru_cache(maxsize=1024)
def _base_release(source: Source) -> str:
    return bases.base_release(source)
