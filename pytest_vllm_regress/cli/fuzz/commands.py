"""The five hunters as commands. Each supplies its own options and its hunter; those of ``Hunt`` are
options of all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import Unsupported, UsageError
from ...util.sizes import GIB
from ..context import OK, UNEXPECTED, TextOrJson, limits, print_json, say, speaker, warn

if TYPE_CHECKING:
    from ...engines.session import Session
    from ...fuzz.hunter import CampaignPlan, Hunter


@dataclass(frozen=True)
class Hunt:
    """The options of all hunters."""

    env: list[str] | None = None
    seed: int = 0
    minutes: float | None = None
    rounds: int | None = None
    examples: int = 100
    out: Path = Path("findings")
    format: TextOrJson = "text"

    @property
    def plan(self) -> CampaignPlan:
        from ...fuzz.hunter import CampaignPlan

        rounds = self.rounds if self.rounds or self.minutes else 1
        return CampaignPlan(self.seed, rounds, self.minutes, self.examples)

    @contextlib.contextmanager
    def sessions(
        self, count: int = 1, *, environments: int = 1, **settings: Any
    ) -> Iterator[tuple[list[str], list[Session]]]:
        """Provide the environments, and sessions for them. Raises ``UsageError`` for more
        environments than can be tested."""
        from ...engines.standalone import bare_session

        names = self.env or []
        if not 0 < len(names) <= environments:
            raise UsageError("name one environment with --env, for example --env vllm-0.33.0")
        with contextlib.ExitStack() as stack:
            sessions = [stack.enter_context(bare_session(warn, **settings)) for _ in range(count)]
            try:
                yield names, sessions
            except Unsupported as error:
                raise UsageError(str(error.args[0])) from None

    def run(self, hunter: Hunter[Any, Any, Any, Any, Any]) -> int:
        """Run a campaign."""
        from ...fuzz.campaign import Campaign

        show = speaker(self.format)
        os.makedirs(self.out, exist_ok=True)
        campaign = Campaign(hunter, self.plan, self.out, show)
        show(f"{hunter.title}: seed {self.seed}")
        with hunter.lanes:
            campaign.run()
            corpus = hunter.ask_corpus(show)
        asked = sum(step.asked for step in campaign.steps)
        show(
            f"{asked} questions in {campaign.seconds:.0f} s; {len(campaign.findings)} findings in {self.out}"
        )
        if self.format == "json":
            print_json({**campaign.to_json(), "corpus": corpus})
        return UNEXPECTED if campaign.findings or any(corpus.values()) else OK


def _lanes(jobs: int | None) -> int:
    return jobs or max(1, len(os.sched_getaffinity(0)) // 2)


def parsers(
    hunt: Hunt = Hunt(examples=200, out=Path("parser-findings")),
    parser: list[str] | None = None,
    limit: list[str] | None = None,
) -> int:
    """Tool and reasoning parsers, with answers in every cut.

    Draws answers with tool calls and reasoning, writes them in each parser's format, and compares
    what every cut of the stream adds up to. Each finding becomes a file for `fuzz replay`. The same
    command resumes a campaign that was killed.

    Exit codes: 0 no problems; 1 findings; 2 usage or bad input; 3 an environment could not be
    built; 130 interrupted.
    """
    from ...fuzz.parsers.parser_hunter import ParserHunter

    most = limits(limit, seconds=30)
    with hunt.sessions() as ((environment,), sessions):
        return hunt.run(ParserHunter.of(sessions, environment, names=parser or (), **most))


def api(
    hunt: Hunt = Hunt(examples=80, out=Path("api-findings")),
    server: list[str] | None = None,
    route: list[str] | None = None,
    limit: list[str] | None = None,
    growth: int = 0,
    jobs: int | None = None,
) -> int:
    """Servers, with what their own description allows, and more.

    Sends requests drawn from the server's OpenAPI description, with boundary values, and reports
    answers that no request may get. Each finding becomes a file for `fuzz replay`. The same command
    resumes a campaign that was killed.

    Exit codes: 0 no problems; 1 findings; 2 usage or bad input; 3 an environment could not be
    built; 130 interrupted.
    """
    from ...fuzz.api.api_hunter import ApiHunter
    from ...fuzz.api.servers import LIMITS

    most = limits(limit, seconds=20)
    with hunt.sessions(limits=LIMITS) as ((environment,), sessions):
        hunter = ApiHunter.of(
            sessions,
            environment,
            seconds=most["seconds"],
            jobs=_lanes(jobs),
            servers=server or (),
            routes=route or (),
            growth=growth,
        )
        return hunt.run(hunter)


def engines(
    hunt: Hunt = Hunt(out=Path("engine-findings")),
    pair: list[str] | None = None,
    limit: list[str] | None = None,
    jobs: int | None = None,
) -> int:
    """Pairs of configurations that must agree.

    Draws requests, sends them to both sides of a pair, and compares tokens, texts, finish reasons
    and log-probabilities. Each finding becomes a file for `fuzz replay`. The same command resumes a
    campaign that was killed.

    Exit codes: 0 no problems; 1 findings; 2 usage or bad input; 3 an environment could not be
    built; 130 interrupted.
    """
    from ...fuzz.engines.pair_hunter import PairHunter

    lanes = _lanes(jobs)
    most = limits(limit, seconds=30, engines=8)
    of_lane = max(2, int(most["engines"]) // lanes)
    with hunt.sessions(lanes, environments=2, max_engines=of_lane) as (names, sessions):
        environment, *others = names
        hunter = PairHunter.of(
            sessions,
            environment,
            names=pair or (),
            against="".join(others),
            seconds=most["seconds"],
        )
        return hunt.run(hunter)


def lifecycle(
    hunt: Hunt = Hunt(examples=30, out=Path("lifecycle-findings")), jobs: int | None = None
) -> int:
    """The life of a server: sleep, adapters, kills, ends.

    Sends a server requests, puts it to sleep, loads adapters, stops and kills its processes, ends
    it, and checks what became of every request. Each finding becomes a file for `fuzz replay`. The
    same command resumes a campaign that was killed.

    Exit codes: 0 no problems; 1 findings; 2 usage or bad input; 3 an environment could not be
    built; 130 interrupted.
    """
    from ...fuzz.lifecycle.story_hunter import StoryHunter

    with hunt.sessions(_lanes(jobs), max_engines=3) as ((environment,), sessions):
        return hunt.run(StoryHunter.of(sessions, environment))


def schemas(
    hunt: Hunt = Hunt(examples=200),
    backend: list[str] | None = None,
    profile: str | None = None,
    nodes: int = 12,
    limit: list[str] | None = None,
    corpus: list[Path] | None = None,
    engine: list[str] | None = None,
    statistics: bool = False,
) -> int:
    """Backends of structured output, with drawn schemas.

    Draws JSON schemas with valid and invalid instances, compares each backend with jsonschema, and
    shrinks the failures. Each finding becomes a file: `fuzz replay` asks it again, `new --finding`
    makes a case of it.

    Exit codes: 0 no problems; 1 findings; 2 usage or bad input; 3 an environment could not be
    built; 130 interrupted.
    """
    from ...engines.standalone import bare_session
    from ...fuzz.schemas.backends import Allowance
    from ...fuzz.schemas.schema_hunter import SchemaHunter
    from ...schemas import distribution
    from ...schemas.profile import as_profile

    chosen = as_profile(profile) if profile else None
    if statistics:
        drawn = distribution(
            hunt.examples, profile=chosen or "full", budget=nodes, seed_value=hunt.seed
        )
        say(str(drawn))
        return OK
    most = limits(limit, seconds=10, memory=2)
    with bare_session(warn) as session:
        hunter = SchemaHunter.installed(
            session,
            hunt.env or [],
            backend or (),
            Allowance(most["seconds"], most["memory"] * GIB),
            profile=chosen,
            nodes=nodes,
            fronts=engine or (),
            corpus=corpus or (),
        )
        return hunt.run(hunter)
