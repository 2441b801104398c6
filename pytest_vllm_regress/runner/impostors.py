"""Each case against failures that are not its own: a pytest for each environment, with the plugin's impostors between test and target."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from ..cases import impostors
from ..cases.impostors import Trial
from ..cases.model import Case
from ..util.rundir import scratch
from .runner import Job, Options, Outcome, Say, plan


def try_impostors(
    cases: Sequence[Case], options: Options, run: Callable[[Sequence[Job], Options], Outcome], say: Say
) -> tuple[Trial, ...]:
    """Every impostor on one test of each case, in the first environment of each side; ``run`` runs jobs.

    What could not be tried is missing from the trials. Raises ``KeyboardInterrupt`` when the run was interrupted.
    """
    if not cases:
        return ()
    say("impostors: each case against failures that are not its own")
    with scratch() as place:
        folder = place / "trials"
        # One test of each case: every worker of pytest-xdist would try them on a test of its own.
        arguments = (*options.pytest_args, f"--vllm-impostors={folder}")
        if run(plan(cases), dataclasses.replace(options, workers="0", pytest_args=arguments)).interrupted:
            raise KeyboardInterrupt
        return tuple(trial for file in sorted(folder.glob("*.json")) for trial in impostors.read(file))
