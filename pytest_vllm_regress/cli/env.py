"""``vllm-regress env``."""

from __future__ import annotations

import functools
import time
from typing import Any

from ..engines.gpus import compiled
from ..environments import uv
from ..environments.cache import CachedEnvironment, EnvironmentCache
from ..environments.locks import MAX_LOCK, lock_text
from ..environments.names import resolve
from ..environments.recipes import EnvironmentFile, Recipe, find_file, load
from ..errors import BuildError, RegressError, UsageError
from ..util.files import peek, write_atomically
from ..util.sizes import GIB, freed_by_removing
from .context import Invocation, Names, TextOrJson, print_columns, print_json, say, warn

_DAY_S = 86400


def list_environments(command: Invocation, format: TextOrJson = "text") -> None:
    """List the environments of environments.toml and the cache.

    With -v also what removing one alone would free, for which all its files are read: files that it
    shares with others, or with uv's cache, stay.
    """

    cache, file = EnvironmentCache(), _file()
    built = {entry.path: entry for entry in cache.listing()}
    row_of = functools.partial(_row, measured=command.verbose)
    rows = [
        row_of(
            recipe.name,
            built.pop(cache.place(recipe), None),
            recipe.description,
            recipe.device,
            locked=recipe.lock is not None,
        )
        for recipe in file.recipes.values()
    ]
    for entry in built.values():
        origin = "from an earlier recipe" if entry.name in file.recipes else "defined by its name"
        rows.append(row_of(entry.name, entry, origin))
    if format == "json":
        print_json({"cache": str(cache.root), "default": file.default, "environments": rows})
        return
    for row in rows:
        for title, size in (("built", row["size"]), ("frees", row.get("frees"))):
            row[title] = "-" if size is None else f"{size / GIB:.1f} GiB"
    frees = ["frees"] if command.verbose else []
    titles = ("name", "device", "built", *frees, "description")
    print_columns(titles, [[row[title] for title in titles] for row in rows])
    say(
        f"{cache.root}: {cache.total_size() / GIB:.1f} GiB, files shared by hard links counted once"
    )


def _row(
    name: str,
    entry: CachedEnvironment | None,
    description: str,
    device: str = "",
    *,
    locked: bool = False,
    measured: bool,
) -> dict[str, Any]:
    frees = {"frees": entry and freed_by_removing(entry.path)} if measured else {}
    return {
        "name": name,
        "device": device,
        "built": entry is not None,
        "size": entry and entry.size,
        **frees,
        "locked": locked,
        "description": description,
    }


def build(command: Invocation, names: Names = None, everything: bool = False) -> None:
    """Build environments that are not built yet.

    The progress of uv is shown on standard error.
    """

    if bool(names) == everything:
        raise UsageError(
            "name the environments to build (`vllm-regress env list` shows some), or give --all"
        )
    recipes = _recipes(names)
    command.confirm_downloads([recipe.name for recipe in recipes], warn)
    cache, failures = EnvironmentCache(), []
    for recipe in recipes:
        try:
            say(f"{recipe.name}  {cache.ensure(recipe, progress=warn)}")
        except RegressError as error:
            failures.append(error)
            warn(str(error))
    if failures:
        raise type(failures[0])(
            f"{len(failures)} of the environments could not be built; see the reasons above"
        )


def lock(names: Names = None) -> None:
    """Resolve environments again and write their locks.

    These are the files locks/NAME.txt beside environments.toml (default: all of environments.toml).
    """

    file = _file()
    for recipe in _recipes(names):
        if recipe.name not in file.recipes:
            raise UsageError(
                f"{recipe.name} is not in {file.path}: only environments in that file can have a lock"
            )
        file.locks.mkdir(exist_ok=True)
        texts = {f"{recipe.name}.txt": lock_text(recipe, progress=warn)}
        if recipe.relax_local:
            local = f"{recipe.name}.local.txt"
            try:
                texts[local] = lock_text(recipe, local=True, progress=warn)
            except BuildError as error:
                (file.locks / local).unlink(missing_ok=True)
                warn(
                    f"no {local}: no local builds were found with the index settings of this machine. {error}"
                )
        for name, text in texts.items():
            path = file.locks / name
            state = "unchanged" if peek(path, MAX_LOCK) == text else "written"
            write_atomically(path, text)
            say(f"{path}: {state}, {text.count('==')} packages")


def prune(names: Names = None, older_than: float | None = None) -> None:
    """Remove environments that are not in use.

    Without NAME or option: those of outdated recipes, and what interrupted builds left. With NAME
    or an option the compiled GPU kernels of that vLLM are removed too; the next engine compiles
    them again.

    uv keeps downloaded files in a cache of its own, which shares them with the environments by hard
    links: `uv cache prune` removes what no environment uses. With VLLM_REGRESS_CACHE_LIMIT that
    cache is the project's own, and is emptied, too.
    """

    if names and older_than is not None:
        raise UsageError("env prune: give either names or --older-than DAYS")
    cache, file = EnvironmentCache(), _file()
    current = {cache.place(recipe) for recipe in file.recipes.values()}
    listed, kernels = cache.listing(), compiled.list_kernels()

    def selected(name: str, used: float, is_outdated: bool = False) -> bool:
        if names:
            return name in names
        if older_than is not None:
            return time.time() - used >= older_than * _DAY_S
        return is_outdated

    downloads = uv.own_downloads()
    going = [
        entry
        for entry in listed
        if selected(
            entry.name, entry.used, entry.name in file.recipes and entry.path not in current
        )
    ]
    compiled_going = [kernel for kernel in kernels if selected(kernel.name, kernel.used)]
    places = [entry.path for entry in going if not entry.in_use]
    own = [downloads] if downloads is not None and downloads.exists() else []
    freed = freed_by_removing(*places, *own, *(kernel.path for kernel in compiled_going))
    shared = sum(entry.size for entry in going if not entry.in_use) - freed
    if own:
        uv.empty_cache()
        say(f"{own[0]}: emptied")
    for entry in going:
        removed = cache.remove(entry)
        say(f"{entry.path.name}: {'removed' if removed else 'in use, kept'}")
    for kernel in compiled_going:
        state = "removed" if compiled.remove(kernel) else "in use, kept"
        say(f"{kernel.name}, compiled kernels: {state}")
    if partial := cache.sweep():
        say(f"{partial} left by interrupted builds: removed")
    say(f"{freed / GIB:.1f} GiB freed in {cache.root.parent}")
    if shared > GIB / 10:
        say(
            f"another {shared / GIB:.1f} GiB were shared by hard links with uv's cache or other "
            "environments: `uv cache prune` removes what no environment uses"
        )
    cached = {entry.name for entry in listed} | {kernel.name for kernel in kernels}
    if unknown := sorted(set(names or ()) - cached):
        raise UsageError(
            f"env prune: {', '.join(unknown)}: not in the cache, which had {', '.join(sorted(cached)) or 'nothing'}"
        )


def path(name: str) -> None:
    """Print the path of an environment's interpreter.

    It is not built for that.
    """

    (recipe,) = _recipes([name])
    python = EnvironmentCache().built(recipe)
    if python is None:
        raise UsageError(f"{name} is not built yet: `vllm-regress env build {name}`")
    say(str(python))


def _file() -> EnvironmentFile:

    return load(find_file())


def _recipes(names: list[str] | None) -> list[Recipe]:

    return [resolve(name) for name in dict.fromkeys(names or _file().recipes)]


COMMANDS = {
    "list": list_environments,
    "build": build,
    "lock": lock,
    "prune": prune,
    "path": path,
}
