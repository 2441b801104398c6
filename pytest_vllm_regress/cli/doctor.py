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
    leftovers: list[Leftover]
    if on is None:
        from ..engines.processes.abandoned import of_builds, of_runs

        leftovers = [trace.to_json(remove=remove) for trace in (*of_runs(), *of_builds())]
    else:
        from ..runner.ray_cluster import leftovers as on_every_node

        leftovers = on_every_node(cluster_of(on)[0], remove)
    if format == "json":
        print_json(leftovers)
    elif not leftovers:
        say("nothing is left behind")
    else:
        nodes = [] if on is None else ["node"]
        rows = [
            [*(str(entry[name]) for name in nodes), *_row(entry, remove)] for entry in leftovers
        ]
        print_columns((*nodes, "what", "size", "since", "left by", "", "name"), rows)
        if not remove:
            say(f"`vllm-regress doctor --remove` removes {'it' if len(leftovers) == 1 else 'them'}")
    return OK if all(entry["removed"] for entry in leftovers) else UNEXPECTED


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
