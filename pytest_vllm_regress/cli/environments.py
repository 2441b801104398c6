"""``vllm-regress env``: the environments there are, building, locking and removing them."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import RegressError, UsageError
from ..util.files import peek, write_whole
from ..util.text import one_line
from .context import HELP, Source, print_json, say, warn

if TYPE_CHECKING:
    from ..environments.recipes import EnvironmentFile, Recipe

app = typer.Typer(
    help="Environments: list, build, lock, prune.",
    no_args_is_help=True,
    context_settings=HELP,
)
_DAY_S = 86400
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", help="Names from environments.toml, or PACKAGE-VERSION[+OTHER==VERSION]."),
]


@app.command("list")
def list_environments(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """The environments of environments.toml, and others that are in the cache."""
    from ..environments.cache import EnvironmentCache
    from ..util.sizes import GIB

    cache, file = EnvironmentCache(), _file()
    built = {each.path: each for each in cache.listing()}
    rows = []
    for recipe in file.recipes.values():
        there = built.pop(cache.place(recipe), None)
        rows.append(
            _row(
                recipe.name,
                recipe.device,
                there is not None,
                there.size if there else None,
                recipe.description,
                recipe.lock is not None,
            )
        )
    rows += [_row(each.name, "", True, each.size, _stranger(file, each.name), False) for each in built.values()]
    if as_json:
        print_json({"cache": str(cache.root), "default": file.default, "environments": rows})
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("name", "device", "built", "description", box=None, pad_edge=False)
    for row in rows:
        size = row["size"]
        shown = f"{size / GIB:.1f} GiB" if isinstance(size, int) else "-"
        table.add_row(*(Text(one_line(str(cell))) for cell in (row["name"], row["device"], shown, row["description"])))
    console = Console(soft_wrap=not sys.stdout.isatty())
    console.print(table)
    say(f"{cache.root}: {cache.total_size() / GIB:.1f} GiB, files shared by hard links counted once")


@app.command()
def build(names: Names = None, source: Source = None) -> None:
    """Build environments that are not there yet (default: all of environments.toml). What uv does is shown on standard error."""
    from ..environments.cache import EnvironmentCache

    cache, failures = EnvironmentCache(), []
    for recipe in _recipes(names):
        try:
            say(f"{recipe.name}  {cache.ensure(recipe, progress=warn)}")
        except RegressError as error:
            failures.append(error)
            warn(str(error))
    if failures:
        raise type(failures[0])(f"{len(failures)} of the environments could not be built; the reasons stand above")


@app.command()
def lock(names: Names = None) -> None:
    """Resolve anew and write locks/NAME.txt beside environments.toml (default: all of it)."""
    from ..environments.locks import lock_text
    from ..errors import BuildError

    file = _file()
    for recipe in _recipes(names):
        if recipe.name not in file.recipes:
            raise UsageError(f"{recipe.name} is not in {file.path}: add it there to have a lock of it")
        file.locks.mkdir(exist_ok=True)
        texts = {f"{recipe.name}.txt": lock_text(recipe, progress=warn)}
        if recipe.relax_local:
            local = f"{recipe.name}.local.txt"
            try:
                texts[local] = lock_text(recipe, local=True, progress=warn)
            except BuildError as error:
                (file.locks / local).unlink(missing_ok=True)
                warn(f"no {local}: the index settings of this machine find no local builds. {error}")
        for name, text in texts.items():
            path = file.locks / name
            before = peek(path, 16 * 1024 * 1024)
            write_whole(path, text)
            say(f"{path}: {'unchanged' if before == text else 'written'}, {text.count('==')} packages")


@app.command()
def prune(
    names: Names = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove every environment.")] = False,
    older_than: Annotated[
        float | None, typer.Option(metavar="DAYS", min=0, help="Remove what was not used for so many days.")
    ] = None,
) -> None:
    """Remove environments that are not in use. Without NAME or option: those that no recipe gives any more, and what interrupted builds left.

    With NAME or option also the kernels that engines on GPUs compiled with that vLLM; the next engine compiles them again.

    uv keeps the downloaded files in a cache of its own, shared with the environments by hard links: `uv cache prune` empties that one.
    """
    from ..environments.cache import EnvironmentCache
    from ..gpus import compiled
    from ..util.sizes import GIB

    if sum((bool(names), everything, older_than is not None)) > 1:
        raise UsageError("env prune: give names, --all or --older-than DAYS, one of them")
    cache, file = EnvironmentCache(), _file()
    current = {cache.place(recipe) for recipe in file.recipes.values()}
    listed, kernels = cache.listing(), compiled.listing()
    there = {each.name for each in listed} | {each.name for each in kernels}
    unknown = set(names or ()) - there
    if unknown:
        raise UsageError(
            f"env prune: {', '.join(sorted(unknown))}: not in the cache. It has {', '.join(sorted(there)) or 'nothing'}"
        )

    def wanted(name: str, used: float, stale: bool = False) -> bool:
        if names:
            return name in names
        return time.time() - used > older_than * _DAY_S if older_than is not None else everything or stale

    def total() -> int:
        return cache.total_size() + sum(each.size for each in compiled.listing())

    before = total()
    for each in listed:
        if wanted(each.name, each.used, each.name in file.recipes and each.path not in current):
            say(f"{each.path.name}: {'removed' if cache.remove(each) else 'in use, kept'}")
    for made in kernels:
        if wanted(made.name, made.used):
            say(f"{made.name}, compiled kernels: {'removed' if compiled.remove(made) else 'in use, kept'}")
    left = cache.sweep()
    if left:
        say(f"{left} left by interrupted builds: removed")
    say(f"{max(0, before - total()) / GIB:.1f} GiB less in {cache.root.parent}")


@app.command()
def path(
    name: Annotated[str, typer.Argument(help="A name from environments.toml, or PACKAGE-VERSION[+OTHER==VERSION].")],
    source: Source = None,
) -> None:
    """Print the path of an environment's interpreter. Builds nothing."""
    from ..environments.cache import EnvironmentCache

    (recipe,) = _recipes([name])
    python = EnvironmentCache().built(recipe)
    if python is None:
        raise UsageError(f"{name} is not built yet: `vllm-regress env build {name}`")
    say(str(python))


def _file() -> EnvironmentFile:
    from ..environments.recipes import find_file, load

    return load(find_file())


def _recipes(names: list[str] | None) -> list[Recipe]:
    from ..environments.names import resolve

    return [resolve(name) for name in dict.fromkeys(names or _file().recipes)]


def _stranger(file: EnvironmentFile, name: str) -> str:
    return "of an earlier recipe" if name in file.recipes else "made up from its name"


def _row(
    name: str, device: str, built: bool, size: int | None, description: str, locked: bool
) -> dict[str, str | bool | int | None]:
    return {"name": name, "device": device, "built": built, "size": size, "locked": locked, "description": description}
