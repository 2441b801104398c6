"""``vllm-regress survey states``."""

from __future__ import annotations

from ...errors import UsageError
from ...surveys.states.measure import TABLES, measure_environment, open_states, report
from ..context import OK, UNEXPECTED, Format, Invocation, Names, print_report, warn
from .shared import resumed


def states(
    command: Invocation,
    environments: list[str],
    only: Names = None,
    fresh: bool = False,
    format: Format = "text",
) -> int:
    """Measure health, shutdown and growth of servers.

    What the health addresses say while the engine works, sleeps, hangs or is dead, how servers end,
    and how their memory grows. Servers run on the simulated device.

    Exit codes: 0 everything was measured; 1 some rows could not be measured; 2 usage; 3 an
    environment could not be built; 130 interrupted.
    """
    tables = only or list(TABLES)
    if unknown := [table for table in tables if table not in TABLES]:
        raise UsageError(f"--only {unknown[0]}: allowed are {', '.join(TABLES)}")
    names = list(dict.fromkeys(environments))
    command.confirm_downloads(names, warn)
    with resumed(open_states, [*names, *tables], fresh=fresh) as releases:
        for name in names:
            for release in measure_environment(name, releases.entries.get(name), tables, warn):
                releases.add(name, release)
        results = dict(releases.entries)
        complete = results.keys() == {*names} and not any(
            release.missing(tables) for release in results.values()
        )
        if complete:
            releases.remove()
    print_report(format, report(list(results.values()), tables), results)
    return OK if complete else UNEXPECTED
