"""``vllm-regress run``."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from ..errors import UsageError
from .context import (
    CaseIds,
    Device,
    Environments,
    GpusEach,
    Jobs,
    On,
    Outputs,
    Shard,
    end_if_idle,
    invocation,
    make_executor,
    say,
    warn,
)


def run(
    context: typer.Context,
    case_ids: CaseIds = None,
    env: Environments = None,
    all_evidence: Annotated[
        bool,
        typer.Option(
            "--all-evidence", help="Use all evidence environments instead of the first two."
        ),
    ] = False,
    device: Device = None,
    out: Outputs = None,
    workers: Annotated[
        str | None, typer.Option("-n", metavar="N", help="pytest-xdist workers: a number or auto.")
    ] = None,
    jobs: Jobs = None,
    on: On = None,
    gpus: GpusEach = None,
    shard: Shard = None,
) -> None:
    """Run cases where they must fail and where they must pass.

    Prints a verdict for each. Arguments after -- go to pytest.

    Environments run side by side (with -n: one at a time), and one is built while others run. Each
    case that ends is one line. pytest's output is shown of environments in which something is
    unexpected; with -v all of it is, and what each test saw. Environments that do not exist yet are
    built; on a terminal you are asked before anything is downloaded.

    Without --env each case must be REPRODUCED in its first affected evidence environment and FIXED
    in its first fixed one; anything else is unexpected.
    """
    from ..output.formats import OutputFiles
    from ..output.table import observation_lines, print_to_console
    from ..runner.executors import build_with_cache, check_environments
    from ..runner.plan import plan_batches
    from ..runner.run import LocalMachine, RunRequest, batch_progress, local_request, run_batches
    from ..runner.shards import take_shard
    from ..runner.slots import Spare, machine_room
    from ..util.signals import terminate_as_interrupt

    if env and all_evidence:
        raise UsageError("--env and --all-evidence contradict each other: give one of them")
    _check_workers(workers, on)
    command = invocation(context)
    files = OutputFiles.of(out)
    cases = command.select(case_ids or [])
    batches = take_shard(plan_batches(cases, env or [], all_evidence=all_evidence), shard)
    end_if_idle(batches, shard, files)
    files.check_results()
    options = command.run_options(device, workers)
    executor = make_executor(on, gpus, jobs, say)
    if on is None:
        check_environments(batches, gpu=options.asks_for_gpu)
        command.confirm_downloads([batch.environment for batch in batches])
        at_once = jobs or (1 if workers else machine_room())
        spare = None if jobs else Spare.of_machine()
        machine = LocalMachine(build_with_cache(say), at_once, spare)
        request = local_request(batches, machine, options, say)
    else:
        request = RunRequest(batches, executor, options, batch_progress(options, say))
    with terminate_as_interrupt():
        outcome = run_batches(dataclasses.replace(request, rescue=files.rescue(warn)))
        files.save(outcome.run, command.cases, say)
    for line in observation_lines(outcome.run.results) if command.verbose else ():
        say(line)
    print_to_console(outcome.run)
    if outcome.interrupted:
        warn("interrupted: not everything was run")
    raise typer.Exit(outcome.exit_code)


def _check_workers(workers: str | None, on: str | None) -> None:
    if workers is None:
        return
    if on:
        raise UsageError(
            "-n and --on contradict each other: the cluster runs environments, one pytest each"
        )
    if workers not in ("auto", "logical") and not (workers.isdecimal() and len(workers) < 5):
        raise UsageError(f"-n {workers!r}: allowed are a number of workers, auto and logical")
