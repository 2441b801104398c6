"""``vllm-regress fuzz parsers``: test vLLM's tool and reasoning parsers with drawn answers in every
cut."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import Unsupported, UsageError
from ..context import OK, UNEXPECTED, AsJson, print_json, say, warn
from .options import OUT, Environment, Minutes, Rounds, Seed

if TYPE_CHECKING:
    from ...fuzz.parsers.campaign import ParserCampaign


def parsers(
    environment: Environment,
    parser: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Parser to test; repeatable (default: all that vLLM registers)."
        ),
    ] = None,
    seed: Seed = 0,
    minutes: Minutes = None,
    rounds: Rounds = None,
    examples: Annotated[int, typer.Option(min=1, help="Answers drawn in each round.")] = 200,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="Time limit for one answer in all cuts, after which the parser's process is killed.",
        ),
    ] = 30.0,
    out: Annotated[Path, OUT] = Path("parser-findings"),
    as_json: AsJson = False,
) -> None:
    """Draw answers with tool calls and reasoning, write them in each parser's format, and compare
    what every cut of the stream adds up to.

    Each finding becomes a file. `vllm-regress replay` replays it. The same command resumes a
    campaign that was killed.
    """
    from ...engines.standalone import bare_session
    from ...fuzz.parsers.campaign import CampaignPlan, ParserCampaign
    from ...fuzz.parsers.checker import ParserChecker

    os.makedirs(out, exist_ok=True)
    plan = CampaignPlan(
        seed, tuple(parser or ()), rounds if rounds or minutes else 1, minutes, examples
    )
    write_line = warn if as_json else say
    with bare_session(warn) as session:
        try:
            checker = ParserChecker(session, environment, seconds)
        except Unsupported as error:
            raise UsageError(f"fuzz parsers: {error.args[0]}") from None
        try:
            write_line(f"vLLM {checker.version} in {checker.environment}: seed {plan.seed}")
            campaign = ParserCampaign(checker, plan, out, write_line)
            _say_coverage(campaign, write_line)
            campaign.run()
        finally:
            checker.close()
    speed = campaign.deltas / max(campaign.seconds, 1e-9)
    write_line(
        f"{campaign.deltas} deltas, {speed:,.0f} a second; {len(campaign.findings)} findings in {out}"
    )
    if as_json:
        print_json(campaign.to_json())
    raise typer.Exit(UNEXPECTED if campaign.findings else OK)


def _say_coverage(campaign: ParserCampaign, write_line: object) -> None:
    assert callable(write_line)
    coverage = campaign.coverage
    names = {str(covered.parser): 1 + len(covered.parser.aliases) for covered in coverage.covered}
    write_line(f"  {sum(names.values())} of {coverage.registered} registered parsers can be asked")
    if coverage.without_writer:
        write_line(f"  not covered, no writer: {', '.join(coverage.without_writer)}")
    for name, words in coverage.unusable.items():
        write_line(f"  not covered, {name}: {words}")
