"""Estimate what building environments downloads.

Sizes come from the package index; only metadata is fetched.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..errors import BuildError, BuildFailure
from ..util.sizes import GIB
from . import uv
from .cache import EnvironmentCache
from .locks import lookup_cached, read_lock, resolver_options, usable_lock
from .names import resolve
from .recipes import Recipe
from .sources import names_interpreter

DISK_FACTOR = 2.0
"""Installed size divided by download size, for wheels of vLLM and torch."""


@dataclass(frozen=True)
class Contents:
    """What an environment will consist of.

    ``files``: size in bytes of every file by name; empty if the index gave no sizes. ``torch``: its
    version, empty if it has none.
    ``yanked``: whether the index has withdrawn the release.
    """

    files: Mapping[str, int] = field(default_factory=dict, hash=False)
    torch: str = ""
    yanked: bool = False


@dataclass(frozen=True)
class Downloads:
    """What has to be built.

    environments: their names. size: bytes of all their files, shared files counted once. unknown:
    environments whose sizes the index did not
    provide. free: free bytes on the disk of the cache at ``place``.
    """

    environments: tuple[str, ...]
    size: int
    unknown: tuple[str, ...]
    free: int
    place: Path

    def __str__(self) -> str:
        size = (
            f"downloads of at most {self.size / GIB:.1f} GiB (uv does not fetch again what it has)"
        )
        size += f", about {self.size * DISK_FACTOR / GIB:.0f} GiB on disk"
        if self.unknown:
            size = f"{size} without {', '.join(self.unknown)}, " if self.size else ""
            size += "how much is unknown (the package index gave no sizes); an environment with vLLM is 6 to 10 GiB on disk"
        tight = self.size * DISK_FACTOR > self.free
        advice = (
            ". They may not fit: name fewer environments, or set VLLM_REGRESS_CACHE to a folder on another disk"
            if tight
            else ""
        )
        return f"to be built first: {', '.join(self.environments)}: {size}; {self.free / GIB:.0f} GiB are free in {self.place}{advice}"


def downloads(names: Sequence[str], cache: EnvironmentCache | None = None) -> Downloads | None:
    """Return the downloads for the named environments; None if there are none. Interpreters and
    built environments need nothing.

    Raises ``UsageError`` if there is no place to build in.
    """
    cache = cache or EnvironmentCache()
    by_name = {
        recipe.name: recipe
        for recipe in (resolve(name) for name in names if not names_interpreter(name))
    }
    # For source code only the base is downloaded.
    bases = {
        (base := recipe.overlay.base if recipe.overlay else recipe).name: base
        for recipe in by_name.values()
    }
    recipes = [recipe for recipe in bases.values() if cache.built(recipe) is None]
    if not recipes:
        return None
    cache.check_place(recipes[0].name)
    files: dict[str, int] = {}
    unknown = []
    for recipe in recipes:
        sizes = contents(recipe).files
        files |= sizes
        if not sizes:
            unknown.append(recipe.name)
    existing = next(folder for folder in (cache.root, *cache.root.parents) if folder.exists())
    return Downloads(
        tuple(recipe.name for recipe in recipes),
        sum(files.values()),
        tuple(unknown),
        shutil.disk_usage(existing).free,
        cache.root.parent,
    )


@dataclass
class CarefulBuilds:
    """Builds environments in ``cache``. Once a build has found the disk full, only those are begun
    for which it has room: a build that fills the disk harms what runs beside it."""

    cache: EnvironmentCache
    full: bool = False

    @contextlib.contextmanager
    def lease(self, recipe: Recipe, progress: uv.Progress) -> Iterator[None]:
        """As ``EnvironmentCache.lease``."""
        with contextlib.ExitStack() as lease:
            if self.full:
                self._check_room(recipe)
            try:
                lease.enter_context(self.cache.lease(recipe, progress=progress))
            except BuildError as error:
                self.full |= error.failure is BuildFailure.DISK_FULL
                raise
            yield

    def _check_room(self, recipe: Recipe) -> None:
        needed = downloads([recipe.name], self.cache)
        if needed and (needed.unknown or needed.size * DISK_FACTOR > needed.free):
            raise BuildError(
                f"{recipe.name}: not built, because the disk was full: {needed}",
                BuildFailure.DISK_FULL,
            )


def contents(recipe: Recipe) -> Contents:
    """Return what an environment will consist of, from its lock or a fresh resolution, which is
    kept; empty if it cannot be resolved."""

    def find() -> str:
        return json.dumps(asdict(_look_up(recipe)))

    def has_sizes(text: str) -> bool:
        try:
            return bool(Contents(**json.loads(text)).files)
        except (ValueError, TypeError):
            return False

    try:
        return Contents(
            **json.loads(
                lookup_cached(
                    "contents.json", f"{recipe.name} {recipe.fingerprint}", find, has_sizes
                )
            )
        )
    except BuildError:
        return Contents()


def _look_up(recipe: Recipe) -> Contents:
    lock = usable_lock(recipe)
    command = ("--python-version", recipe.python)
    doing = f"{recipe.name}: asking for sizes"
    if lock:
        packages, output = uv.pylock(read_lock(lock), *command, "--no-deps", doing=doing)
    else:
        with resolver_options(recipe, relaxed="==") as options:
            requirements = "\n".join(recipe.requirements)
            packages, output = uv.pylock(requirements, *command, *options, doing=doing)
    chosen = [
        file for package in packages for file in uv.compatible_files(package, recipe.python)[:1]
    ]
    return Contents(
        {uv.file_name(file): file["size"] for file in chosen if "size" in file},
        next((package["version"] for package in packages if package["name"] == "torch"), ""),
        re.search(rf"(?m)^warning: `{re.escape('=='.join(recipe.target))}` is yanked", output)
        is not None,
    )
