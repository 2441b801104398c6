"""Options for resolving a recipe with uv, and locks: files with every package of an environment,
its version and hashes."""

from __future__ import annotations

import contextlib
import datetime
import json
import platform
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ..errors import BuildError, BuildFailure, EnvironmentFileError, UsageError
from ..util.documents import load_json
from ..util.files import private_folder, read_bounded, write_atomically
from ..util.paths import writable_root
from ..util.rundir import scratch
from ..util.validation import format_value
from ..util.versions import fewest, suspects_first
from . import uv
from .recipes import RELEASE, Recipe, is_day, pins, uv_requirements
from .uv import Progress

_LOCK_HEAD = (
    "# recipe {fingerprint}, {where}: made by `vllm-regress env lock {name}`, do not edit\n"
)
_TORCH = ("torch", "torchvision", "torchaudio")
MAX_LOCK = _MAX_NOTE = 16 * 1024 * 1024
_NOTES = threading.Lock()
_SHA256 = re.compile(r"[0-9a-f]{64}")


@contextlib.contextmanager
def resolver_options(recipe: Recipe, *, relaxed: str = "") -> Iterator[list[str | Path]]:
    """Yield uv's options for resolving ``recipe``. ``relaxed`` is the operator to which pins on
    local builds are relaxed, if at all.

    ``==X`` allows X and X+cpu, and uv prefers the latter; ``===X`` allows only X. If a folder of
    wheels may have local builds, torch is pinned with ``===`` unless the recipe asks for local
    builds, because a CPU torch with the index's torchvision cannot be imported.
    """
    overrides = list(recipe.overrides)
    pinned = recipe.pins
    if recipe.relax_local and relaxed:
        overrides += [
            f"{name}{relaxed}{version}"
            for name, version in _pins(recipe, recipe.relax_local).items()
        ]
    elif not recipe.relax_local and "vllm" in pinned and uv.has_wheel_folder():
        overrides += [f"{name}==={version}" for name, version in _pins(recipe, _TORCH).items()]
    with scratch() as folder:
        options: list[str | Path] = []
        for flag, content in (("--overrides", overrides), ("--constraints", recipe.constraints)):
            if content:
                file = folder / flag.strip("-")
                file.write_text(uv_requirements(content))
                options += [flag, file]
        if recipe.exclude_newer:
            options += ["--exclude-newer", _cut_off(recipe.exclude_newer, *recipe.target)]
        days = {
            package: _cut_off(day, package, pinned.get(package, ""))
            for package, day in recipe.exclude_newer_package
        }
        for package, day in (_days_of_needs(recipe, days) | days).items():
            options += ["--exclude-newer-package", f"{package}={day}"]
        yield options


def usable_lock(recipe: Recipe) -> Path | None:
    """Return the recipe's lock if it is for this platform.

    Raises ``EnvironmentFileError`` if the recipe has changed since.
    """
    if recipe.lock is None:
        return None
    for lock in filter(None, (recipe.lock, recipe.lock_local)):
        if recipe.fingerprint not in read_lock(lock).partition("\n")[0]:
            raise EnvironmentFileError(
                f"{lock} was made for an earlier recipe of {recipe.name} than the present one ({recipe.fingerprint}): "
                f"run `vllm-regress env lock {recipe.name}`"
            )
    return (
        recipe.lock
        if f", {_platform_of(recipe)}:" in read_lock(recipe.lock).partition("\n")[0]
        else None
    )


def exact_pins(lock: str) -> str:
    """Return a lock's text with pins that local builds do not satisfy:

    ``torch==2.13.0`` allows a ``2.13.0+cpu``, which has another hash.
    """
    return re.sub(r"(?m)^([^\s=#]+)==(?!=)", r"\1===", lock)


def read_lock(lock: Path) -> str:
    """Return the text of a lock. Raises ``UsageError`` if it is not a file or too large."""
    return read_bounded(lock, MAX_LOCK, what="a lock").decode("utf-8", errors="replace")


def lock_text(
    recipe: Recipe,
    *,
    local: bool = False,
    wheels_only: bool = False,
    progress: Progress = lambda line: None,
) -> str:
    """Resolve ``recipe`` and return the lock: every package with its version and the hashes of
    files for its Python and this machine.

    ``local`` keeps pins on local builds (``==X+cpu``) instead of relaxing them. The lock contains
    no URL of an index. Raises ``BuildError`` if there is no resolution, or none with hashes.
    """
    with resolver_options(recipe, relaxed="" if local else "===") as options:
        packages, _ = uv.pylock(
            uv_requirements(recipe.requirements),
            *("--python", recipe.python),
            *options,
            *(("--only-binary", ":all:") if wheels_only else ()),
            doing=f"{recipe.name}: locking",
            progress=progress,
        )
    head = _LOCK_HEAD.format(
        fingerprint=recipe.fingerprint, where=_platform_of(recipe), name=recipe.name
    )
    return head + "".join(_locked(package, recipe.python) for package in packages)


def resolved_versions(
    requirements: Iterable[str],
    day: datetime.date,
    python: str = "3.11",
    days: Mapping[str, datetime.date] = MappingProxyType({}),
) -> dict[str, str]:
    """Return the version of each package to which ``requirements`` resolve with what was uploaded
    by the end of ``day``. Raises ``BuildError``.

    ``days``: other days for single packages.
    """
    lines = uv_requirements(requirements)
    return resolve_by(
        lines,
        day,
        *("--python-version", python),
        *(f"--exclude-newer-package={name}={later}" for name, later in days.items()),
        doing=f"resolving {', '.join(lines.splitlines())} as of {day}",
    )


def resolve_by(requirements: str, day: datetime.date, *options: str, doing: str) -> dict[str, str]:
    """Return the version of each package to which ``requirements`` resolve with what was uploaded
    by the end of ``day``, by ``options`` of uv."""
    plain = ("--no-header", "--no-annotate", "--exclude-newer", day.isoformat())
    return pins(uv.resolve(requirements, *plain, *options, doing=doing).splitlines())


def newest_by(requirement: str, day: datetime.date, *options: str) -> str | None:
    """Return the newest version that ``requirement`` allows of what was uploaded by the end of
    ``day``, without looking at its dependencies; None if there is none."""
    options = ("--no-deps", "--python-version", "3.11", *options)
    try:
        found = resolve_by(requirement, day, *options, doing=f"looking for {requirement} of {day}")
    except BuildError as error:
        if error.failure is BuildFailure.UNRESOLVABLE:
            return None
        raise
    return next(iter(found.values()), "")


def release_date(package: str, version: str) -> datetime.date:
    """Return the upload date (UTC) of a release: of its first file for this platform.

    Raises ``BuildError`` if it does not exist, or if the index has no dates.
    """
    key = f"{package}=={version}"

    def find() -> str:
        # Wheels only: for the metadata of a source distribution its code would run.
        options = ("--no-deps", "--only-binary", ":all:", "--python-version", "3.11")
        try:
            (entry, *_), _ = uv.pylock(key, *options, doing=f"looking for {key}")
        except BuildError as error:
            if error.failure is not BuildFailure.UNRESOLVABLE:
                raise
            raise BuildError(
                f"{key} cannot be found on the package index: there is no such release for this platform"
            ) from None
        files = uv.compatible_files(entry, "3.11")
        times = [file["upload-time"] for file in files if "upload-time" in file]
        if not times:
            raise BuildError(f"the package index does not say when {key} was uploaded")
        return str(min(times).date())

    return datetime.date.fromisoformat(lookup_cached("release-dates.json", key, find, is_day))


def lookup_cached(
    file: str,
    key: str,
    find: Callable[[], str],
    is_valid: Callable[[str], bool] = lambda text: True,
) -> str:
    """Return the result of ``find`` for ``key``, cached in ``file`` without expiry.

    Invalid entries are ignored.
    """
    note = writable_root() / file
    entries = _cached(note)
    if key in entries and is_valid(entries[key]):
        return entries[key]
    found = find()
    with _NOTES, contextlib.suppress(UsageError):  # without it the next lookup only takes longer
        private_folder(note.parent)
        # Read again: other threads have added theirs in the meantime.
        write_atomically(note, json.dumps({**_cached(note), key: found}))
    return found


def _cached(note: Path) -> dict[str, str]:
    with contextlib.suppress(UsageError, ValueError, AttributeError):
        entries = load_json(note, _MAX_NOTE).items()
        return {name: text for name, text in entries if isinstance(text, str)}
    return {}


def _cut_off(day: str, package: str, version: str) -> str:
    return (
        day
        if day != RELEASE
        else (release_date(package, version) + datetime.timedelta(days=1)).isoformat()
    )


def _days_of_needs(recipe: Recipe, days: Mapping[str, str]) -> dict[str, str]:
    """Return the day of each package that another one of ``recipe``, added by name and newer than
    the target, needs in a newer version, too.

    That day is the one of the package that needs it, from ``days``.
    """
    needs: dict[str, str] = {}
    if recipe.exclude_newer:
        day = _cut_off(recipe.exclude_newer, *recipe.target)
        for package, kind in recipe.exclude_newer_package:
            if kind == RELEASE and package in recipe.pins and days[package] > day:
                requirement = f"{package}=={recipe.pins[package]}"
                needs |= dict.fromkeys(
                    newer_needs(requirement, day, days[package], recipe.python), days[package]
                )
    return needs


def newer_needs(requirement: str, day: str, later: str, python: str) -> tuple[str, ...]:
    """Return the fewest packages that must be as of ``later`` for ``requirement`` to resolve as of
    ``day``; empty if none must, or no set suffices.

    ``requirement`` pins a package that itself was uploaded by ``later``. The result is cached.
    """
    package = requirement.partition("==")[0]
    first, last = map(datetime.date.fromisoformat, (day, later))

    def failure(names: Iterable[str]) -> str:
        """Return why ``requirement`` does not resolve with ``names`` as of ``later``; empty if it
        does."""
        try:
            resolved_versions([requirement], first, python, dict.fromkeys((package, *names), last))
        except BuildError as error:
            if error.failure is BuildFailure.UNRESOLVABLE:
                return str(error)
            raise
        return ""

    def find() -> str:
        if not (reason := failure(())):
            return ""
        names = [name for name in resolved_versions([requirement], last, python) if name != package]
        return " ".join(fewest(suspects_first(names, reason), lambda some: not failure(some)))

    return tuple(
        lookup_cached("newer-needs.json", f"{requirement} {day} {later} {python}", find).split()
    )


def _pins(recipe: Recipe, names: Iterable[str]) -> dict[str, str]:
    """Return the target's own pins of ``names``, without local versions, except for packages that
    the recipe pins. Read from its metadata."""
    metadata = _metadata(recipe)
    in_recipe = {
        canonicalize_name(Requirement(line).name)
        for line in (*recipe.requirements, *recipe.overrides)
    }
    pins = {}
    for name in names:
        pin = re.search(
            rf"^Requires-Dist: {re.escape(name)}\s*\(?==\s*([\d.]+)", metadata, re.M | re.I
        )
        if pin and name not in in_recipe:
            pins[name] = pin[1]
    return pins


def _metadata(recipe: Recipe) -> str:
    """Return the metadata of the target.

    If only uv can reach its wheel, for example with credentials that uv has, the wheel is
    installed.
    """
    from .wheels import read_metadata

    with contextlib.suppress(BuildError):
        return read_metadata(*recipe.target, recipe.python)
    requirement = "==".join(recipe.target)
    with scratch() as folder:
        command: list[str | Path] = ["pip", "install", "--quiet", "--no-deps", "--target", folder]
        uv.run(
            [*command, "--python", recipe.python, requirement],
            doing=f"{recipe.name}: reading the requirements of {requirement}",
        )
        return next(folder.glob("*.dist-info/METADATA")).read_text(
            encoding="utf-8", errors="replace"
        )


def _platform_of(recipe: Recipe) -> str:
    return f"Python {recipe.python} on {platform.system()} {platform.machine()}"


def _locked(package: Mapping[str, Any], python: str) -> str:
    """Return a package's lines of a lock, from its entry in uv's pylock."""
    where = f"for Python {python} on {platform.system()} {platform.machine()}"
    hashes = sorted(
        {str(file.get("hashes", {}).get("sha256")) for file in uv.compatible_files(package, python)}
    )
    if not hashes:
        raise BuildError(f"{package['name']} {package['version']} has no file {where}")
    if wrong := [
        digest for digest in hashes if not _SHA256.fullmatch(digest)
    ]:  # another line of the lock, for example
        raise BuildError(
            f"{package['name']} {package['version']}: the package index gives {format_value(wrong[0])} as the SHA-256 of a file {where}, "
            "which is none. Use another index"
        )
    return (
        f"{package['name']}=={package['version']}"
        + "".join(f" \\\n    --hash=sha256:{digest}" for digest in hashes)
        + "\n"
    )
