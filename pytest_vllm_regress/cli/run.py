"""``vllm-regress run``: run cases in their evidence environments, or in named ones."""

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
    check_device,
    confirm_downloads,
    end_if_idle,
    invocation,
    make_executor,
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
        bool, typer.Option("--all-evidence", help="Use all evidence environments instead of the first two.")
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

    Environments run side by side (with -n: one at a time), and one is built while others run. Each case that ends is one line. pytest's output
    is shown of environments in which something is unexpected; with `vllm-regress -v run` all of it is.
    Environments that do not exist yet are built; on a terminal you are asked before anything is downloaded.
    Without --env each case must be REPRODUCED in its first affected environment and FIXED in its first fixed one; anything else is unexpected.
    """
    from ..reporting.table import print_to_console
    from ..runner.build import build_with_cache, check_environments
    from ..runner.plan import plan_batches
    from ..runner.result_files import check_destination, save_results
    from ..runner.run import LocalMachine, RunRequest, batch_progress, local_request, run_batches
    from ..runner.shards import take_shard
    from ..runner.slots import Spare, machine_room
    from ..util.paths import writable_root
    from ..util.signals import terminate_as_interrupt

    _check_run(env, all_evidence, device, workers, on)
    shared = invocation(context)
    cases = shared.select(case_ids or [])
    batches = take_shard(plan_batches(cases, env or [], all_evidence=all_evidence), shard)
    end_if_idle(batches, shard, destination)
    check_destination(destination)
    executor = make_executor(on, gpus, jobs, say)
    options = shared.run_options(device, workers)
    if on is None:
        check_environments(batches, gpu=options.asks_for_gpu)
        confirm_downloads([batch.environment for batch in batches], yes=yes)
    if on is None:
        at_once = jobs or (1 if workers else machine_room())
        spare = None if jobs else Spare.of_machine()
        request = local_request(batches, LocalMachine(build_with_cache(say), at_once, spare), options, say)
    else:
        request = RunRequest(batches, executor, options, batch_progress(options, say))
    with terminate_as_interrupt():
        outcome = run_batches(request)
    written = save_results(outcome.run, destination, writable_root() / "results", say)
    if written is not None:
        say(f"results: {written}")
    print_to_console(outcome.run)
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
