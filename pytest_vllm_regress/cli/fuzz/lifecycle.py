"""``vllm-regress fuzz lifecycle``: let drawn stories happen to a server, and check its history."""

from __future__ import annotations

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
    out: Annotated[Path, OUT] = Path("lifecycle-findings"),
    as_json: AsJson = False,
) -> None:
    """Send a server requests, put it to sleep, load adapters, stop and kill its processes, end it, and check what became of every request.

    Each finding becomes a file. `vllm-regress replay` replays it. The same command resumes a campaign that was killed.
    """
    from ...engines.standalone import bare_session
    from ...fuzz.lifecycle.campaign import CampaignPlan, StoryCampaign
    from ...fuzz.lifecycle.checker import StoryChecker

    os.makedirs(out, exist_ok=True)
    plan = CampaignPlan(seed, rounds if rounds or minutes else 1, minutes, examples)
    write_line = warn if as_json else say
    with bare_session(warn, max_engines=3) as session:
        try:
            checker = StoryChecker(session, environment)
        except Unsupported as error:
            raise UsageError(f"fuzz lifecycle: {error.args[0]}") from None
        try:
            write_line(f"vLLM {checker.version} in {checker.environment}: seed {plan.seed}")
            campaign = StoryCampaign(checker, plan, out, write_line)
            campaign.run()
        finally:
            checker.close()
    write_line(f"{len(campaign.steps)} stories in {campaign.seconds:.0f} s; {len(campaign.findings)} findings in {out}")
    if as_json:
        print_json(campaign.to_json())
    raise typer.Exit(UNEXPECTED if campaign.findings else OK)
