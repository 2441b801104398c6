"""Try failures that are not a case's own: a pytest for each environment, with the plugin's
impostors between test and target."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from ..cases.model import Case
from ..cases.proofs.impostors import ImpostorRun, read_impostor_runs
from ..util.rundir import scratch
from .batch import Batch, RunOptions, RunOutcome
from .plan import plan_batches
from .progress import Say


def try_impostors(
    cases: Sequence[Case],
    options: RunOptions,
    run: Callable[[Sequence[Batch], RunOptions], RunOutcome],
    say: Say,
) -> tuple[ImpostorRun, ...]:
    """Try every impostor on one test of each case, in the first environment of each side. ``run``
    runs batches.

    Trials that could not be made are missing from the result. Raises ``KeyboardInterrupt`` when the
    run was interrupted.
    """
    if not cases:
        return ()
    say("impostors: each case against failures that are not its own")
    with scratch() as place:
        folder = place / "trials"
        # One worker, so that one test of each case is tried: every worker of pytest-xdist would
        # choose a test of its own.
        arguments = (*options.pytest_args, f"--vllm-impostors={folder}")
        # These runs have no verdicts: a line for each case would call every case INCONCLUSIVE.
        trial_options = dataclasses.replace(
            options, workers="0", pytest_args=arguments, verbose=True
        )
        if run(plan_batches(cases), trial_options).interrupted:
            raise KeyboardInterrupt
        return tuple(
            trial for file in sorted(folder.glob("*.json")) for trial in read_impostor_runs(file)
        )
