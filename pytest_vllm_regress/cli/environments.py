"""``vllm-regress env``: list, build, lock and remove environments."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import RegressError, UsageError
from ..util.files import peek, write_atomically
from ..util.text import one_line
from .context import HELP, Source, Yes, confirm_downloads, print_json, say, warn

if TYPE_CHECKING:
    from ..environments.recipes import EnvironmentFile, Recipe

app = typer.Typer(
    help="Environments: list, build, lock, path, prune.",
    no_args_is_help=True,
    context_settings=HELP,
)
_DAY_S = 86400
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME", help="Names from environments.toml, or PACKAGE-VERSION[+OTHER==VERSION]."
    ),
]


@app.command("list")
def list_environments(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the environments of environments.toml, and others in the cache."""
    from ..environments.cache import EnvironmentCache
    from ..util.sizes import GIB

    cache, file = EnvironmentCache(), _file()
    built = {entry.path: entry for entry in cache.listing()}
    rows = []
    for recipe in file.recipes.values():
        cached = built.pop(cache.place(recipe), None)
        rows.append(
            _row(
                recipe.name,
                recipe.device,
                cached is not None,
                cached.size if cached else None,
                recipe.description,
                recipe.lock is not None,
            )
        )
    rows += [
        _row(entry.name, "", True, entry.size, _origin(file, entry.name), False)
        for entry in built.values()
    ]
    if as_json:
        print_json({"cache": str(cache.root), "default": file.default, "environments": rows})
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("name", "device", "built", "description", box=None, pad_edge=False)
    for row in rows:
        size = row["size"]
        size_text = f"{size / GIB:.1f} GiB" if isinstance(size, int) else "-"
        table.add_row(
            *(
                Text(one_line(str(cell)))
                for cell in (row["name"], row["device"], size_text, row["description"])
            )
        )
    console = Console(soft_wrap=not sys.stdout.isatty())
    console.print(table)
    say(
        f"{cache.root}: {cache.total_size() / GIB:.1f} GiB, files shared by hard links counted once"
    )


@app.command()
def build(
    names: Names = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Build all environments of environments.toml.")
    ] = False,
    source: Source = None,
    yes: Yes = False,
) -> None:
    """Build environments that are not built yet. The progress of uv is shown on standard error."""
    from ..environments.cache import EnvironmentCache

    if bool(names) == everything:
        raise UsageError(
            "name the environments to build (`vllm-regress env list` shows some), or give --all"
        )
    recipes = _recipes(names)
    confirm_downloads([recipe.name for recipe in recipes], yes=yes, show=warn)
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


@app.command()
def lock(names: Names = None) -> None:
    """Resolve environments again and write locks/NAME.txt beside environments.toml (default: all of
    environments.toml)."""
    from ..environments.locks import lock_text
    from ..errors import BuildError

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
            before = peek(path, 16 * 1024 * 1024)
            write_atomically(path, text)
            say(
                f"{path}: {'unchanged' if before == text else 'written'}, {text.count('==')} packages"
            )


@app.command()
def prune(
    names: Names = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove every environment.")] = False,
    older_than: Annotated[
        float | None,
        typer.Option(
            metavar="DAYS", min=0, help="Remove environments that were not used for this many days."
        ),
    ] = None,
) -> None:
    """Remove environments that are not in use. Without NAME or option: those of outdated recipes,
    and what interrupted builds left.

    With NAME or an option the compiled GPU kernels of that vLLM are removed too; the next engine
    compiles them again.

    uv keeps downloaded files in a cache of its own, which shares them with the environments by hard
    links: `uv cache prune` removes what no environment uses.
    """
    from ..engines.gpus import compiled
    from ..environments.cache import EnvironmentCache
    from ..util.sizes import GIB

    if sum((bool(names), everything, older_than is not None)) > 1:
        raise UsageError("env prune: give either names, --all or --older-than DAYS")
    cache, file = EnvironmentCache(), _file()
    current = {cache.place(recipe) for recipe in file.recipes.values()}
    listed, kernels = cache.listing(), compiled.list_kernels()
    cached = {*(environment.name for environment in listed), *(entry.name for entry in kernels)}

    def selected(name: str, used: float, is_outdated: bool = False) -> bool:
        if names:
            return name in names
        return (
            time.time() - used > older_than * _DAY_S
            if older_than is not None
            else everything or is_outdated
        )

    def total() -> int:
        return cache.total_size() + sum(entry.size for entry in compiled.list_kernels())

    before = total()
    for environment in listed:
        is_outdated = environment.name in file.recipes and environment.path not in current
        if selected(environment.name, environment.used, is_outdated):
            say(
                f"{environment.path.name}: {'removed' if cache.remove(environment) else 'in use, kept'}"
            )
    for entry in kernels:
        if selected(entry.name, entry.used):
            say(
                f"{entry.name}, compiled kernels: {'removed' if compiled.remove(entry) else 'in use, kept'}"
            )
    partial = cache.sweep()
    if partial:
        say(f"{partial} left by interrupted builds: removed")
    say(f"{max(0, before - total()) / GIB:.1f} GiB freed in {cache.root.parent}")
    if unknown := sorted(set(names or ()) - cached):
        raise UsageError(
            f"env prune: {', '.join(unknown)}: not in the cache, which had {', '.join(sorted(cached)) or 'nothing'}"
        )


@app.command()
def path(
    name: Annotated[
        str,
        typer.Argument(help="A name from environments.toml, or PACKAGE-VERSION[+OTHER==VERSION]."),
    ],
    source: Source = None,
) -> None:
    """Print the path of an environment's interpreter, without building it."""
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


def _origin(file: EnvironmentFile, name: str) -> str:
    return "from an earlier recipe" if name in file.recipes else "defined by its name"


def _row(
    name: str, device: str, built: bool, size: int | None, description: str, locked: bool
) -> dict[str, str | bool | int | None]:
    return {
        "name": name,
        "device": device,
        "built": built,
        "size": size,
        "locked": locked,
        "description": description,
    }
