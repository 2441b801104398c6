"""``vllm-regress doctor``: what earlier runs left behind, and removing it."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from .context import HELP, OK, UNEXPECTED, AsJson, On, print_columns, print_json, say

Found = dict[str, str | int | float | bool]
EPILOG = "Exit codes: 0 nothing is left behind (any more); 1 something is; 2 usage; 4 internal error."
_UNITS = ("B", "KiB", "MiB", "GiB")
app = typer.Typer(context_settings=HELP, add_completion=False)


@app.command(epilog=EPILOG)
def doctor(
    remove: Annotated[bool, typer.Option("--remove", help="Remove it.")] = False,
    on: On = None,
    as_json: AsJson = False,
) -> None:
    """What did earlier runs leave behind? Shows processes, shared memory, run directories and half-built environments that are provably of
    runs that have ended; what belongs to a living run, or cannot be proven to be ours, is neither shown nor touched."""
    found = _here(remove) if on is None else _on_cluster(on, remove)
    if as_json:
        print_json(found)
    elif not found:
        say("nothing is left behind")
    else:
        where = [] if on is None else ["node"]
        rows = [[*(str(each["node"]) for _ in where), *_row(each, remove)] for each in found]
        print_columns((*where, "what", "size", "since", "left by", "", "name"), rows)
        if not remove:
            say("`vllm-regress doctor --remove` removes it")
    raise typer.Exit(OK if all(each["removed"] for each in found) else UNEXPECTED)


def _here(remove: bool) -> list[Found]:
    from ..processes.leftovers import of_builds, of_runs

    return [trace.to_json(remove=remove) for trace in (*of_runs(), *of_builds())]


def _on_cluster(address: str, remove: bool) -> list[Found]:
    """The same from every living node."""
    from ..runner.on_ray.cluster import leftovers

    return leftovers(address, remove)


def _row(found: Found, asked: bool) -> tuple[str, ...]:
    done = "removed" if found["removed"] else "could not be removed" if asked else ""
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(found["since"])))
    return str(found["what"]), human(float(found["size"])), since, str(found["owner"]), done, str(found["name"])


def human(size: float) -> str:
    """Bytes in a unit that is easy to read."""
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"
