"""``vllm-regress run``: cases in their evidence environments, or in those that are named."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import UsageError
from .context import (
    HELP,
    CaseIds,
    Device,
    GpusEach,
    Jobs,
    On,
    Results,
    Shard,
    Source,
    WheelIndex,
    Yes,
    carrier,
    check_device,
    confirm_downloads,
    end_if_idle,
    invocation,
    say,
    warn,
)

app = typer.Typer(context_settings=HELP)


@app.command()
def run(
    context: typer.Context,
    case_ids: CaseIds = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|PATH",
            help="Environment or interpreter to use instead of the evidence environments; repeatable.",
        ),
    ] = None,
    all_evidence: Annotated[
        bool, typer.Option("--all-evidence", help="All evidence environments, not the first two.")
    ] = False,
    device: Device = None,
    destination: Results = None,
    source: Source = None,
    wheel_index: WheelIndex = None,
    workers: Annotated[
        str | None, typer.Option("-n", metavar="N", help="pytest-xdist workers: a number or auto.")
    ] = None,
    jobs: Jobs = None,
    on: On = None,
    gpus: GpusEach = None,
    shard: Shard = None,
    yes: Yes = False,
) -> None:
    """Run cases in their evidence environments and print a verdict for each. Arguments after -- go to pytest.

    Environments are used side by side (with -n: one at a time), and one is built while others run; what is printed keeps its order.
    Builds environments that are not there yet; says before how much that downloads, and on a terminal asks.
    Without --env each case must be REPRODUCED in its first affected
    environment and FIXED in its first fixed one; anything else is not expected.
    """
    from ..cases.model import select
    from ..reporting.table import print_to_console
    from ..runner import runner as runs
    from ..runner.matrix import in_order, side_by_side
    from ..runner.shards import take
    from ..runner.slots import Spare, machine_room
    from ..util.paths import writable_root
    from ..util.signals import terminate_as_interrupt

    _check_run(env, all_evidence, device, workers, on)
    ours = invocation(context)
    planned = take(runs.plan(select(ours.cases(), case_ids or []), env or [], all_evidence=all_evidence), shard)
    end_if_idle(planned, shard, destination)
    chosen = carrier(on, gpus, jobs, say)
    if on is None:
        runs.check_environments(planned)
        confirm_downloads([job.environment for job in planned], yes=yes)
    options = runs.Options(device, workers, ours.pytest_args, ours.cases_dir)
    with terminate_as_interrupt():
        if on is None:
            at_once = jobs or (1 if workers else machine_room())
            more = {} if jobs else {"spare": Spare.of_machine()}
            outcome = side_by_side(planned, at_once, runs.build_with_cache(say), options, say, **more)
        else:
            outcome = in_order(planned, chosen, options, say)
    written = runs.keep(outcome.run, destination, writable_root() / "results", say)
    print_to_console(outcome.run)
    if written is not None:
        say(f"results: {written}")
    if outcome.interrupted:
        warn("interrupted: not everything was run")
    raise typer.Exit(outcome.exit_code)


def _check_run(
    env: list[str] | None, all_evidence: bool, device: str | None, workers: str | None, on: str | None
) -> None:
    if env and all_evidence:
        raise UsageError("--env and --all-evidence contradict each other: give one of them")
    if on and workers:
        raise UsageError("-n and --on contradict each other: the cluster runs environments, one pytest each")
    check_device(device)
    if workers is not None and workers not in ("auto", "logical") and not (workers.isdecimal() and len(workers) < 5):
        raise UsageError(f"-n {workers!r}: allowed are a number of workers, auto and logical")
