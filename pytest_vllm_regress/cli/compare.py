"""``vllm-regress compare``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..errors import UsageError
from .context import (
    FORMAT,
    INTERRUPTED,
    OK,
    UNEXPECTED,
    Invocation,
    invocation,
    print_columns,
    print_json,
    say,
    warn,
)

if TYPE_CHECKING:
    from ..cases.model import Case
    from ..cases.results import TestResult

EPILOG = (
    "Exit codes: 0 nothing new breaks; 1 the change has a failure that was not there before; "
    "2 usage or bad input; 4 internal error."
)


def compare(
    context: typer.Context,
    before: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="A release (0.8.4), an environment with a lock (vllm-0.8.4), an environment's directory or its bin/python, a list of packages, "
            "a lock file, a requirement, or - for standard input.",
        ),
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="The same, after the change.")],
    format: Annotated[Literal["text", "json", "markdown"], FORMAT] = "text",
    run: Annotated[
        bool,
        typer.Option(
            "--run",
            help="Run the cases of which nothing is recorded; A and B are environments or releases (Linux only).",
        ),
    ] = False,
) -> None:
    """Say what a change of versions breaks, fixes and leaves.

    Reads recorded results and ranges, and runs only with --run.
    """
    from ..answers.audit import comparison
    from ..answers.audit.severity import severity
    from ..answers.audit.target import read_sides

    cases = invocation(context).cases()
    old, new = read_sides(before, after)
    result = comparison.compare(old, new, cases)
    if run:
        concerned = [change.case for change in result.changes]
        missing = {
            _environment(name): comparison.not_recorded(side, concerned)
            for name, side in ((before, old), (after, new))
        }
        result = comparison.compare(old, new, cases, _run(invocation(context), missing))
    if format == "json":
        print_json({"schema": 1, **result.to_json()})
    elif format == "markdown":
        say(result.markdown())
    else:
        rows = [
            (change.effect, change.case.id, severity(change.case), change.after, change.case.title)
            for change in result.changes
        ]
        print_columns(("effect", "case", "severity", "after the change", "failure"), rows)
        say(f"{result.before} to {result.after}: {result.counts()}")
    for note in result.notes:
        warn(f"note: {note}")
    raise typer.Exit(UNEXPECTED if result.of(comparison.UpgradeEffect.BREAKS) else OK)


def _environment(side: str) -> str:
    """Return the environment that runs a side of a comparison.

    Raises ``UsageError`` for a list of packages.
    """
    from ..util.versions import is_version

    if Path(side).exists():
        raise UsageError(
            f"--run: {side} is a file or a directory: name an environment, such as vllm-0.8.4, or a release"
        )
    return f"vllm-{side}" if is_version(side) else side


def _run(command: Invocation, missing: Mapping[str, tuple[Case, ...]]) -> tuple[TestResult, ...]:
    """Run the cases that are missing in each environment, and return their results."""
    from ..runner.batch import Batch
    from ..runner.executors import build_with_cache, check_environments
    from ..runner.run import LocalMachine, local_request, run_batches
    from ..runner.slots import Spare, machine_room
    from ..util.signals import terminate_as_interrupt

    if sys.platform != "linux":
        raise UsageError("--run: Linux only, because it starts engines")
    batches = [Batch(name, cases, {}) for name, cases in missing.items() if cases]
    check_environments(batches, gpu=False)
    command.confirm_downloads([batch.environment for batch in batches], warn)
    machine = LocalMachine(build_with_cache(warn), machine_room(), Spare.of_machine())
    with terminate_as_interrupt():
        outcome = run_batches(local_request(batches, machine, command.run_options(None), warn))
    if outcome.interrupted:
        warn("interrupted: not everything was run")
        raise typer.Exit(INTERRUPTED)
    return outcome.run.results
