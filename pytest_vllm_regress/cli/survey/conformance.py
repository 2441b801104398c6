"""``vllm-regress survey conformance``."""

from __future__ import annotations

from typing import Annotated

import typer

from ...errors import BuildError
from ...runner.executors import build_with_cache
from ...surveys.conformance import (
    open_runs,
    read_known,
    report,
    run_suite,
    suite_directory,
    unexplained,
)
from ...util.signals import terminate_as_interrupt
from ..context import OK, UNBUILT, UNEXPECTED, Fresh, invocation, warn
from .shared import Environments, Format, resumed, show

EPILOG = (
    "Exit codes: 0 a known upstream failure explains every failed check; 1 otherwise; "
    "2 usage; 3 an environment could not be built; 130 interrupted."
)


def conformance(
    context: typer.Context,
    environments: Environments,
    only: Annotated[
        str | None,
        typer.Option(
            "-k", metavar="EXPRESSION", help="Run only the checks that pytest's -k selects."
        ),
    ] = None,
    fresh: Fresh = False,
    format: Format = "text",
) -> None:
    """Run the conformance suite: which features work.

    Each check runs on each engine generation. Arguments after -- go to pytest: `-- -m smoke`.
    """
    suite = suite_directory()
    known = read_known(suite / "known.toml")
    selection = [*(("-k", only) if only else ()), *invocation(context).pytest_args]
    names = list(dict.fromkeys(environments))
    with resumed(open_runs, [*names, *selection], fresh=fresh) as runs, terminate_as_interrupt():
        measured = {ran.environment for ran in runs.entries.values()}
        unbuilt = False
        for name in names:
            if name in measured:
                warn(f"{name}: measured by an earlier run of the same command")
                continue
            try:
                build_with_cache(warn)(name)
            except BuildError as error:
                warn(f"{name}: {error}")
                unbuilt = True
                continue
            ran = run_suite(name, suite, selection)
            runs.add(ran.name, ran)
        results = list(runs.entries.values())
        if not unbuilt:
            runs.remove()
    show(report(results, known), [ran.to_json() for ran in results], format)
    raise typer.Exit(UNBUILT if unbuilt else UNEXPECTED if unexplained(results, known) else OK)
