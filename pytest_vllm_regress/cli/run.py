"""``vllm-regress run``."""

from __future__ import annotations

from dataclasses import replace

from ..cases.rates import recent_results, unsteady
from .context import Device, Invocation, Names, Paths, batches_of_shard, make_executor, say, warn


def run(
    command: Invocation,
    case_ids: Names = None,
    environments: Names = None,
    device: Device = None,
    out: Paths = None,
    jobs: int | None = None,
    on: str | None = None,
    shard: str | None = None,
) -> int:
    """Run cases where they must fail and where they must pass.

    Prints a verdict for each. Arguments after -- go to pytest: with --jobs 1 -- -n 4 it uses four
    workers of pytest-xdist.

    Environments run side by side, and one is built while others run. Each case that ends is one
    line. pytest's output is shown of environments in which something is unexpected; with -v all of
    it is, and what each test saw. Environments that do not exist yet are built; on a terminal you
    are asked before anything is downloaded.

    Without --env each case must be REPRODUCED in its first affected evidence environment and FIXED
    in its first fixed one; anything else is unexpected. All evidence environments: `vllm-regress
    matrix`.
    """
    from ..output.formats import OutputFiles
    from ..output.table import observation_lines, print_to_console, slowest_line
    from ..runner.plan import plan_batches
    from ..runner.run import RunRequest, batch_progress, run_batches

    files = OutputFiles.of(out)
    cases = command.select(case_ids)
    batches = batches_of_shard(plan_batches(cases, environments or []), shard, files)
    options = command.run_options(device)
    if on is None:
        request = command.request_here(batches, options, jobs, say)
    else:
        executor = make_executor(on, jobs, say)
        request = RunRequest(batches, executor, options, batch_progress(options, say))
    outcome = run_batches(replace(request, rescue=files.rescue(warn)))
    try:
        files.save(outcome.run, command.cases, say)
    finally:  # also on a full disk
        if command.verbose:
            say(*observation_lines(outcome.run.results))
        print_to_console(outcome.run)
        say(*filter(None, [slowest_line(outcome.run)]))
    for rate in unsteady(recent_results(cases)):
        if rate.environment in {result.environment for result in outcome.run.results}:
            measure = command.command("validate", rate.case_id)
            warn(f"note: {rate}. To measure it: {measure} --trials {rate.trials}")
    if outcome.interrupted:
        warn("interrupted: not everything was run")
    return outcome.exit_code
