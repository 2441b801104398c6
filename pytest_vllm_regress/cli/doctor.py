"""``vllm-regress doctor``."""

from __future__ import annotations

import time

from ..util.sizes import human
from .context import OK, UNEXPECTED, TextOrJson, cluster_of, print_columns, print_json, say

Leftover = dict[str, str | int | float | bool]


def doctor(remove: bool = False, on: str | None = None, format: TextOrJson = "text") -> int:
    """Find and remove what earlier runs left behind.

    These are processes, shared memory, run directories and partial environments. Only what provably
    belongs to a run that has ended is listed or removed; anything of a running run, or of unknown
    origin, is not touched.

    Exit codes: 0 nothing is left behind; 1 something is left behind; 2 usage; 4 internal error.
    """
    leftovers = _on_this_machine(remove) if on is None else _on_cluster(on, remove)
    if format == "json":
        print_json(leftovers)
    elif not leftovers:
        say("nothing is left behind")
    else:
        node_column = [] if on is None else ["node"]
        rows = [
            [*(str(entry[name]) for name in node_column), *_row(entry, remove)]
            for entry in leftovers
        ]
        print_columns((*node_column, "what", "size", "since", "left by", "", "name"), rows)
        if not remove:
            say(f"`vllm-regress doctor --remove` removes {'it' if len(leftovers) == 1 else 'them'}")
    return OK if all(entry["removed"] for entry in leftovers) else UNEXPECTED


def _on_this_machine(remove: bool) -> list[Leftover]:
    from ..engines.processes.abandoned import of_builds, of_runs

    return [trace.to_json(remove=remove) for trace in (*of_runs(), *of_builds())]


def _on_cluster(address: str, remove: bool) -> list[Leftover]:
    """Return the leftovers on every node that is alive."""
    from ..runner.ray_cluster import leftovers

    return leftovers(cluster_of(address)[0], remove)


def _row(leftover: Leftover, remove: bool) -> tuple[str, ...]:
    state = "removed" if leftover["removed"] else "could not be removed" if remove else ""
    since = _local_time(float(leftover["since"]))
    size = human(float(leftover["size"]))
    return str(leftover["what"]), size, since, str(leftover["owner"]), state, str(leftover["name"])


def _local_time(seconds: float) -> str:
    """Return the time for people. A file may have any date."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "unknown"
