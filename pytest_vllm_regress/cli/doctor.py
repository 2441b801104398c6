"""``vllm-regress doctor``: what earlier runs left behind, and removing it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from .context import HELP, OK, UNEXPECTED, AsJson, print_columns, print_json, say

if TYPE_CHECKING:
    from ..processes.leftovers import Trace

EPILOG = "Exit codes: 0 nothing is left behind (any more); 1 something is; 2 usage; 4 internal error."
_UNITS = ("B", "KiB", "MiB", "GiB")
app = typer.Typer(context_settings=HELP, add_completion=False)


@app.command(epilog=EPILOG)
def doctor(
    remove: Annotated[bool, typer.Option("--remove", help="Remove it.")] = False,
    as_json: AsJson = False,
) -> None:
    """What did earlier runs leave behind? Shows processes, shared memory, run directories and half-built environments that are provably of
    runs that have ended; what belongs to a living run, or cannot be proven to be ours, is neither shown nor touched."""
    from ..processes.leftovers import of_builds, of_runs

    found = [*of_runs(), *of_builds()]
    removed = [trace.remove() for trace in found] if remove else [False] * len(found)
    if as_json:
        print_json([_plain(trace, gone) for trace, gone in zip(found, removed, strict=True)])
    elif not found:
        say("nothing is left behind")
    else:
        rows = [_row(trace, gone, remove) for trace, gone in zip(found, removed, strict=True)]
        print_columns(("what", "size", "since", "left by", "", "name"), rows)
        if not remove:
            say("`vllm-regress doctor --remove` removes it")
    raise typer.Exit(OK if all(removed) else UNEXPECTED)


def _row(trace: Trace, gone: bool, asked: bool) -> tuple[str, ...]:
    done = "removed" if gone else "could not be removed" if asked else ""
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(trace.since))
    return trace.what, human(trace.size), since, trace.owner, done, trace.name


def _plain(trace: Trace, gone: bool) -> dict[str, str | int | float | bool]:
    return {
        "what": trace.what,
        "name": trace.name,
        "owner": trace.owner,
        "since": trace.since,
        "size": trace.size,
        "removed": gone,
    }


def human(size: float) -> str:
    """Bytes in a unit that is easy to read."""
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"
