"""``vllm-regress fuzz api``: ask a server what its own description allows, and more, and look for
wrong answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ...errors import Unsupported, UsageError
from ..context import OK, UNEXPECTED, AsJson, print_json, say, warn
from .options import OUT, Environment, Minutes, Rounds, Seed


def api(
    environment: Environment,
    server: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Kind of server: text, vision, embed, classify, score, speech; repeatable (default: all).",
        ),
    ] = None,
    route: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH", help="Route to ask, e.g. /v1/completions; repeatable (default: all)."
        ),
    ] = None,
    seed: Seed = 0,
    minutes: Minutes = None,
    rounds: Rounds = None,
    examples: Annotated[
        int, typer.Option(min=1, help="Requests to each operation in a round.")
    ] = 80,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time limit for one answer.")] = 20.0,
    growth: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="REQUESTS",
            help="Also send an accepted and a refused request of each operation this often, and measure the memory (0: no).",
        ),
    ] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Servers of one kind asked at the same time (default: one for two cores)."
        ),
    ] = None,
    out: Annotated[Path, OUT] = Path("api-findings"),
    as_json: AsJson = False,
) -> None:
    """Send requests drawn from the server's OpenAPI description, with boundary values, and report
    answers that no request may get.

    Each finding becomes a file. `vllm-regress replay` replays it. The same command resumes a
    campaign that was killed.
    """
    from ...engines.standalone import bare_session
    from ...fuzz.api.campaign import ApiCampaign, CampaignPlan
    from ...fuzz.api.checker import ApiChecker
    from ...fuzz.api.starting import LIMITS, ServerStarter

    os.makedirs(out, exist_ok=True)
    limit = rounds if rounds or minutes else 1
    plan = CampaignPlan(
        seed, tuple(server or ()), tuple(route or ()), limit, minutes, examples, growth
    )
    write_line = warn if as_json else say
    with bare_session(warn, limits=LIMITS) as session:
        try:
            starter = ServerStarter(session, environment)
        except Unsupported as error:
            raise UsageError(f"fuzz api: {error.args[0]}") from None
        checker = ApiChecker(starter, seconds, jobs or max(1, len(os.sched_getaffinity(0)) // 2))
        try:
            write_line(f"vLLM {checker.version} in {checker.environment}: seed {plan.seed}")
            campaign = ApiCampaign(checker, plan, out, write_line)
            campaign.run()
        finally:
            checker.close()
    write_line(f"{campaign.asked} requests; {len(campaign.findings)} findings in {out}")
    if as_json:
        print_json(campaign.to_json())
    raise typer.Exit(UNEXPECTED if campaign.findings else OK)
