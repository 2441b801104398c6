"""What building environments would download, told before it is done. The sizes are the package index's own; only metadata is fetched for them."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..errors import BuildError
from ..util.documents import parse_toml
from ..util.rundir import scratch
from ..util.sizes import GIB
from . import uv
from .cache import EnvironmentCache
from .locks import file_name, fitting_files, read_lock, resolver_options, usable_lock
from .names import resolve
from .recipes import Recipe
from .sources import names_interpreter

DISK_FACTOR = 2.0
"""Wheels of vLLM and torch unpack to about twice their size."""


@dataclasses.dataclass(frozen=True)
class Downloads:
    """What is to be built: ``environments`` by name; ``size`` in bytes of all their files, those they share counted once; ``unknown``: the
    environments whose files the index did not tell; ``free`` bytes on the cache's disk, which is at ``place``."""

    environments: tuple[str, ...]
    size: int
    unknown: tuple[str, ...]
    free: int
    place: Path

    def __str__(self) -> str:
        size = f"downloads of at most {self.size / GIB:.1f} GiB (uv does not fetch again what it has)"
        size += f", about {self.size * DISK_FACTOR / GIB:.0f} GiB on disk"
        if self.unknown:
            size = f"{size} without {', '.join(self.unknown)}, " if self.size else ""
            size += (
                "how much is unknown (the package index gave no sizes); an environment with vLLM is 4 to 12 GiB on disk"
            )
        return f"to be built first: {', '.join(self.environments)}: {size}; {self.free / GIB:.0f} GiB are free in {self.place}"


def downloads(names: Sequence[str], cache: EnvironmentCache | None = None) -> Downloads | None:
    """What would be downloaded for the environments of these names; interpreters' paths and what is built need nothing. None: nothing at all."""
    cache = cache or EnvironmentCache()
    named = {recipe.name: recipe for recipe in (resolve(name) for name in names if not names_interpreter(name))}
    # Source code stands over its base: that is what is downloaded.
    wanted = {(base := recipe.overlay.base if recipe.overlay else recipe).name: base for recipe in named.values()}
    recipes = [recipe for recipe in wanted.values() if cache.built(recipe) is None]
    if not recipes:
        return None
    files: dict[str, int] = {}
    unknown = []
    for recipe in recipes:
        found = _files(recipe)
        files |= found
        if not found:
            unknown.append(recipe.name)
    there = next(each for each in (cache.root, *cache.root.parents) if each.exists())
    return Downloads(
        tuple(recipe.name for recipe in recipes),
        sum(files.values()),
        tuple(unknown),
        shutil.disk_usage(there).free,
        cache.root.parent,
    )


def _files(recipe: Recipe) -> dict[str, int]:
    """Name and size in bytes of every file of an environment, from its lock or resolved afresh; empty where that is unknown."""
    lock = usable_lock(recipe)
    asked = read_lock(lock) if lock else "\n".join(recipe.requirements)
    with scratch() as folder:
        out = folder / "pylock.toml"
        fixed: list[str | Path] = ["pip", "compile", "-", "--quiet", "--format", "pylock.toml", "-o", out]
        fixed += ["--python-version", recipe.python]
        doing = f"{recipe.name}: asking for sizes"
        try:
            if lock:
                uv.run([*fixed, "--no-deps"], doing=doing, stdin=asked)
            else:
                with resolver_options(recipe, relaxed="==") as options:
                    uv.run([*fixed, *options], doing=doing, stdin=asked)
        except BuildError:
            return {}
        packages = parse_toml(out.read_text(encoding="utf-8"))["packages"]
    chosen = [file for package in packages for file in fitting_files(package, recipe.python)[:1]]
    return {file_name(file): file["size"] for file in chosen if "size" in file}
