"""``vllm-regress fuzz engines``: test pairs of configurations, which must agree, with drawn
requests."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from ...errors import Unsupported, UsageError
from ..context import OK, UNEXPECTED, AsJson, print_json, say, warn
from .options import OUT, Environment, Minutes, Rounds, Seed


def engines(
    environment: Environment,
    pair: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Pair to test, for example batch, stream or http; repeatable (default: all; an unknown name lists them).",
        ),
    ] = None,
    against: Annotated[
        str,
        typer.Option(metavar="ENV", help="Environment with another release, for the pair release."),
    ] = "",
    seed: Seed = 0,
    minutes: Minutes = None,
    rounds: Rounds = None,
    examples: Annotated[int, typer.Option(min=1, help="Questions drawn in each round.")] = 100,
    seconds: Annotated[
        float,
        typer.Option(
            min=1,
            help="Time limit for requests that are sent together, after which an engine is killed.",
        ),
    ] = 30.0,
    max_engines: Annotated[
        int,
        typer.Option(
            min=2,
            help="Engines that stay up at the same time; each needs about half a GiB of memory.",
        ),
    ] = 8,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Engines of one kind asked at the same time, each by a process (default: one for two cores).",
        ),
    ] = None,
    out: Annotated[Path, OUT] = Path("engine-findings"),
    as_json: AsJson = False,
) -> None:
    """Draw requests, send them to pairs of configurations that must agree, and compare tokens,
    texts, finish reasons and log-probabilities.

    Each finding becomes a file. `vllm-regress replay` replays it. The same command resumes a
    campaign that was killed.
    """
    from ...engines.standalone import bare_session
    from ...fuzz.engines.campaign import CampaignPlan, EngineCampaign
    from ...fuzz.engines.checker import PairChecker

    os.makedirs(out, exist_ok=True)
    plan = CampaignPlan(
        seed, tuple(pair or ()), against, rounds if rounds or minutes else 1, minutes, examples
    )
    write_line = warn if as_json else say
    lanes = jobs or max(1, len(os.sched_getaffinity(0)) // 2)
    with contextlib.ExitStack() as stack:
        engines_of_lane = max(2, max_engines // lanes)
        sessions = [
            stack.enter_context(bare_session(warn, max_engines=engines_of_lane))
            for _ in range(lanes)
        ]
        try:
            checkers = [PairChecker(session, environment, seconds) for session in sessions]
        except Unsupported as error:
            raise UsageError(f"fuzz engines: {error.args[0]}") from None
        write_line(f"vLLM {checkers[0].version} in {checkers[0].environment}: seed {plan.seed}")
        campaign = EngineCampaign(checkers, plan, out, write_line)
        campaign.run()
    asked = sum(step["asked"] for step in campaign.steps)
    write_line(
        f"{asked} questions in {campaign.seconds:.0f} s; {len(campaign.findings)} findings in {out}"
    )
    if as_json:
        print_json(campaign.to_json())
    raise typer.Exit(UNEXPECTED if campaign.findings else OK)
