"""``vllm-regress fuzz lifecycle``: let drawn stories happen to a server, and check its history."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from ...errors import Unsupported, UsageError
from ..context import OK, UNEXPECTED, AsJson, print_json, say, warn
from .options import OUT, Environment, Minutes, Rounds, Seed


def lifecycle(
    environment: Environment,
    seed: Seed = 0,
    minutes: Minutes = None,
    rounds: Rounds = None,
    examples: Annotated[int, typer.Option(min=1, help="Stories drawn in each round.")] = 30,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Servers at the same time (default: one for two cores)."),
    ] = None,
    out: Annotated[Path, OUT] = Path("lifecycle-findings"),
    as_json: AsJson = False,
) -> None:
    """Send a server requests, put it to sleep, load adapters, stop and kill its processes, end it,
    and check what became of every request.

    Each finding becomes a file. `vllm-regress replay` replays it. The same command resumes a
    campaign that was killed.
    """
    from ...engines.standalone import bare_session
    from ...fuzz.lifecycle.campaign import CampaignPlan, StoryCampaign
    from ...fuzz.lifecycle.checker import StoryChecker
    from ...fuzz.lifecycle.lanes import Lanes

    os.makedirs(out, exist_ok=True)
    plan = CampaignPlan(seed, rounds if rounds or minutes else 1, minutes, examples)
    write_line = warn if as_json else say
    size = jobs or max(1, len(os.sched_getaffinity(0)) // 2)
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(bare_session(warn, max_engines=3)) for _ in range(size)]
        try:
            lanes = Lanes([StoryChecker(session, environment) for session in sessions])
        except Unsupported as error:
            raise UsageError(f"fuzz lifecycle: {error.args[0]}") from None
        write_line(f"vLLM {lanes.first.version} in {lanes.first.environment}: seed {plan.seed}")
        try:
            campaign = StoryCampaign(lanes, plan, out, write_line)
            campaign.run()
        except BaseException:
            lanes.close(wait=False)  # the end of the sessions ends their servers
            raise
        lanes.close()
    write_line(
        f"{len(campaign.steps)} stories in {campaign.seconds:.0f} s; {len(campaign.findings)} findings in {out}"
    )
    if as_json:
        print_json(campaign.to_json())
    raise typer.Exit(UNEXPECTED if campaign.findings else OK)
