"""``vllm-regress survey states``."""

from __future__ import annotations

from typing import Annotated

import typer

from ...errors import UsageError
from ...surveys.states.measure import TABLES, measure_environment, open_states, report
from ...util.signals import terminate_as_interrupt
from ..context import OK, UNEXPECTED, Fresh, invocation, warn
from .shared import Environments, Format, resumed, show

EPILOG = (
    "Exit codes: 0 everything was measured; 1 some rows could not be measured; 2 usage; "
    "3 an environment could not be built; 130 interrupted."
)


def states(
    context: typer.Context,
    environments: Environments,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="|".join(TABLES), help="Measure only this; repeatable."),
    ] = None,
    fresh: Fresh = False,
    format: Format = "text",
) -> None:
    """Measure health, shutdown and growth of servers.

    What the health addresses say while the engine works, sleeps, hangs or is dead, how servers end,
    and how their memory grows. Servers run on the simulated device.
    """
    tables = only or list(TABLES)
    if unknown := [table for table in tables if table not in TABLES]:
        raise UsageError(f"--only {unknown[0]}: allowed are {', '.join(TABLES)}")
    names = list(dict.fromkeys(environments))
    invocation(context).confirm_downloads(names, warn)
    with resumed(open_states, [*names, *tables], fresh=fresh) as releases, terminate_as_interrupt():
        for name in names:
            for release in measure_environment(name, releases.entries.get(name), tables, warn):
                releases.add(name, release)
        results = dict(releases.entries)
        complete = results.keys() == {*names} and not any(
            release.missing(tables) for release in results.values()
        )
        if complete:
            releases.remove()
    show(report(list(results.values()), tables), results, format)
    raise typer.Exit(OK if complete else UNEXPECTED)
