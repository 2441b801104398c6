"""From an environment's name to its recipe: listed, made up from a release, or source code over a release."""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import functools

from packaging.version import Version

from ..errors import BuildError, UsageError
from ..util.validation import shown
from . import bases
from .index import known_releases, newest_release, releases
from .locks import release_date
from .recipes import CommitBuild, Overlay, Recipe, find_file, load, pinned
from .sources import Source, SourceName, find, names_interpreter, parse_name, wheel_index

CLOSE = 3


def resolve(name: str) -> Recipe:
    """The recipe for ``name``: in the project's environments.toml or the copy that came with the package, or of source code.

    Raises ``UsageError`` for a name that means nothing, and ``BuildError`` where the base of a commit cannot be found out.
    """
    named = parse_name(name)
    return load(find_file()).resolve(name) if named is None else overlaid(find(named), named)


def not_there(name: str, *, ask: bool = True) -> str:
    """Why there can be no environment of that name, and names close to it; empty where there may be one.

    Of a release that is younger than this package the index is asked (``ask``); one that does not answer says nothing. Names with source code
    are not looked at.
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
    for package, version in filter(None, map(pinned, (*recipe.requirements, *recipe.overrides))):
        known = _releases_around(package, Version(version), ask=ask)
        if known and Version(version) not in known:
            close = difflib.get_close_matches(version, [str(each) for each in reversed(known)], CLOSE)
            there = f"close to it: {', '.join(close)}" if close else f"the newest is {known[-1]}"
            return f"environment {shown(name)}: {package} has no release {version}; {there}"
    return ""


def _releases_around(package: str, version: Version, *, ask: bool) -> tuple[Version, ...]:
    """The releases of a package as far as they say whether there is that version; none where they do not: no list has pre-releases."""
    known = () if version.is_prerelease else known_releases(package)
    if not known or version <= known[-1]:
        return known
    try:
        return releases(package) if ask else ()
    except BuildError:
        return ()


def overlaid(source: Source, named: SourceName) -> Recipe:
    """The recipe of source code over its base: the environment that the name has, or the release that fits best."""
    package = source.project.distribution
    index = wheel_index(source.commit) if package == "vllm" and not source.changed else None
    if index is not None:
        return _with_own_wheel(source, named, index)
    base_name = named.base or f"{package}-{_base_release(source)}"
    base = load(find_file()).resolve(base_name)
    if package == "vllm" and base.device != "sim":
        raise UsageError(
            f"{base_name}+{package}@: a commit's Python over another release's compiled parts proves nothing where those are used, so it runs "
            f"on the simulated device only, and {base_name} is for {base.device}. Take vllm-X as the base"
        )
    release = version_in(base, package)
    code = str(source.tree) if named.is_path else source.commit.id[:10]
    prefix = f"{named.base}+" if named.base else ""
    overlay = Overlay(source, base, bases.reported_version(source, release), bases.remarks(source, release))
    return dataclasses.replace(
        base,
        name=f"{prefix}{package}@{code}",
        description=f"{source.commit.subject[:60]}, over {base.name}",
        lock=None,
        lock_local=None,
        overlay=overlay,
    )


def _with_own_wheel(source: Source, named: SourceName, index: str) -> Recipe:
    """The commit's own wheel, compiled parts and all: what it can be run with on every device."""
    base = load(find_file()).resolve(named.base or f"vllm-{_base_release(source)}")
    day = bases.requirements_day(source) + datetime.timedelta(days=1)
    return dataclasses.replace(
        base,
        name=f"{named.base}{named.base and '+'}vllm@{source.commit.id[:10]}",
        exclude_newer=day.isoformat(),
        exclude_newer_package=(),
        description=f"{source.commit.subject[:60]}, its own wheel",
        lock=None,
        lock_local=None,
        build=CommitBuild(source.commit.id, index),
    )


def version_in(recipe: Recipe, package: str) -> str:
    """The version of ``package`` that a recipe pins, or the newest of its target's day where it leaves that open."""
    pins = dict(filter(None, map(pinned, (*recipe.requirements, *recipe.overrides))))
    if package in pins:
        return pins[package]
    found = newest_release(package, release_date(*recipe.target))
    if found is None:
        raise UsageError(f"{recipe.name} has no {package}: name a base that has it")
    return found


@functools.lru_cache(maxsize=1024)
def _base_release(source: Source) -> str:
    return bases.base_release(source)
