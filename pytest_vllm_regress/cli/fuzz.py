"""``vllm-regress fuzz``: search for failures that nobody has reported, and replay findings.

Each of the five hunters is a command with its own options; those of ``Hunt`` are options of all.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..defaults import MAX_ENGINES
from ..errors import BuildError, ChildError, Unsupported, UsageError
from ..util.sizes import GIB
from .context import (
    OK,
    UNBUILT,
    UNEXPECTED,
    Names,
    Paths,
    TextOrJson,
    limits,
    print_json,
    say,
    speaker,
    warn,
)

if TYPE_CHECKING:
    from ..environments.recipes import Recipe
    from ..fuzz.hunter import Hunter


@dataclass(frozen=True)
class Hunt:
    """The options of all hunters."""

    env: Names = None
    seed: int = 0
    minutes: float | None = None
    rounds: int | None = None
    examples: int = 100
    out: Path = Path("findings")
    format: TextOrJson = "text"

    def run(
        self,
        name: str,
        lanes: int = 1,
        engines: int = MAX_ENGINES,
        environments: int = 1,
        **options: Any,
    ) -> int:
        """Run a campaign of a hunter with a session for each lane. Raises ``UsageError`` for more
        environments than it tests: further ones are of the option ``against``."""
        from ..engines.settings import KEPT_REQUESTS
        from ..engines.standalone import bare_session
        from ..fuzz.hunter import hunter_named

        environment, *others = self.env or [""]
        if not environment or len(others) >= environments:
            raise UsageError("name one environment with --env, for example --env vllm-0.33.0")
        if others:
            options["against"] = others[0]
        hunter = hunter_named(name)
        with contextlib.ExitStack() as stack:
            sessions = [
                stack.enter_context(
                    bare_session(
                        warn, max_engines=engines, limits=hunter.limits, leftovers=KEPT_REQUESTS
                    )
                )
                for _ in range(lanes)
            ]
            try:
                return self.campaign(hunter.of(sessions, environment, **options))
            except Unsupported as error:
                raise UsageError(f"fuzz {name}: {error.args[0]}") from None

    def campaign(self, hunter: Hunter[Any, Any, Any, Any]) -> int:
        """Run a campaign."""
        from ..fuzz.campaign import Campaign
        from ..fuzz.hunter import CampaignPlan

        show = speaker(self.format)
        rounds = self.rounds if self.rounds or self.minutes else 1
        plan = CampaignPlan(self.seed, rounds, self.minutes, self.examples)
        os.makedirs(self.out, exist_ok=True)
        campaign = Campaign(hunter, plan, self.out, show)
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
    parser: Names = None,
    limit: Names = None,
) -> int:
    """Tool and reasoning parsers, with answers in every cut.

    Draws answers with tool calls and reasoning, writes them in each parser's format, and compares
    what every cut of the stream adds up to. Each finding becomes a file for `fuzz replay`. The same
    command resumes a campaign that was killed.

    Exit codes: 0 no problems; 1 findings; 2 usage or bad input; 3 an environment could not be
    built; 130 interrupted.
    """
    return hunt.run("parsers", names=parser or (), seconds=limits(limit, seconds=30)["seconds"])


def api(
    hunt: Hunt = Hunt(examples=80, out=Path("api-findings")),
    server: Names = None,
    route: Names = None,
    limit: Names = None,
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
    return hunt.run(
        "api",
        jobs=_lanes(jobs),
        servers=server or (),
        routes=route or (),
        growth=growth,
        seconds=limits(limit, seconds=20)["seconds"],
    )


def engines(
    hunt: Hunt = Hunt(out=Path("engine-findings")),
    pair: Names = None,
    limit: Names = None,
    jobs: int | None = None,
) -> int:
    """Pairs of configurations that must agree.

    Draws requests, sends them to both sides of a pair, and compares tokens, texts, finish reasons
    and log-probabilities. Each finding becomes a file for `fuzz replay`. The same command resumes a
    campaign that was killed.

    Exit codes: 0 no problems; 1 findings; 2 usage or bad input; 3 an environment could not be
    built; 130 interrupted.
    """
    lanes = _lanes(jobs)
    most = limits(limit, seconds=30, engines=8)
    return hunt.run(
        "engines",
        lanes,
        max(2, int(most["engines"]) // lanes),
        environments=2,
        names=pair or (),
        seconds=most["seconds"],
    )


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
    return hunt.run("lifecycle", _lanes(jobs), engines=3)


def schemas(
    hunt: Hunt = Hunt(examples=200),
    backend: Names = None,
    profile: str | None = None,
    nodes: int = 12,
    limit: Names = None,
    corpus: Paths = None,
    engine: Names = None,
    statistics: bool = False,
) -> int:
    """Backends of structured output, with drawn schemas.

    Draws JSON schemas with valid and invalid instances, compares each backend with jsonschema, and
    shrinks the failures. Each finding becomes a file: `fuzz replay` asks it again, `new --finding`
    makes a case of it.

    Exit codes: 0 no problems; 1 findings; 2 usage or bad input; 3 an environment could not be
    built; 130 interrupted.
    """
    from ..engines.standalone import bare_session
    from ..fuzz.schemas.backends import Allowance
    from ..fuzz.schemas.schema_hunter import SchemaHunter
    from ..schemas import distribution
    from ..schemas.profile import as_profile

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
        return hunt.campaign(hunter)


def replay(files: list[Path], env: str | None = None, format: TextOrJson = "text") -> int:
    """Check whether findings still fail.

    Prints STILL FAILS, FIXED or CANNOT RUN for each file.

    Exit codes: 0 all are FIXED; 1 at least one STILL FAILS; 2 usage or bad input; 3 at least one
    CANNOT RUN and none STILL FAILS.
    """
    from ..engines.settings import KEPT_REQUESTS
    from ..engines.standalone import bare_session
    from ..environments.cache import EnvironmentCache
    from ..fuzz.finding import ReplayAnswer
    from ..fuzz.hunter import hunter_named, load

    findings = [(path, load(path)) for path in _paths(files)]
    recipes = {} if env else {path: _recipe(path, finding) for path, finding in findings}
    kinds = {hunter_named(finding.hunter) for _, finding in findings}
    limits = next(filter(None, (kind.limits for kind in kinds)), None)
    hunters: dict[tuple[str, str], Any] = {}
    answers = []
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(bare_session(warn, limits=limits, leftovers=KEPT_REQUESTS))
        for path, finding in findings:
            hunter, environment = finding.hunter, env or recipes[path].name
            try:
                if not env:
                    # The session would resolve the name without hashes.
                    EnvironmentCache().ensure(recipes[path], progress=warn)
                if (hunter, environment) not in hunters:  # findings of a folder share servers
                    made = hunter_named(hunter).of([session], environment)
                    hunters[hunter, environment] = made
                    stack.enter_context(made.lanes)
                replayer = hunters[hunter, environment]
                answer, words = replayer.replay(finding)
                if answer is not ReplayAnswer.CANNOT_RUN:
                    words = f"{replayer.subject(finding)}: {words}"
            except (BuildError, Unsupported, ChildError) as error:
                answer, words = ReplayAnswer.CANNOT_RUN, str(error.args[0])
            answers.append({"file": str(path), "answer": answer.value, "words": words})
            if format == "text":
                say(f"{answer.value:11}  {path}: {words}")
    if format == "json":
        print_json(answers)
    given = {entry["answer"] for entry in answers}
    if ReplayAnswer.STILL_FAILS in given:
        return UNEXPECTED
    return UNBUILT if ReplayAnswer.CANNOT_RUN in given else OK


def report(file: Path) -> None:
    """A finding of `fuzz api` as the text of vLLM's bug form."""
    from ..fuzz.hunter import load

    say(load(file, "api").bug_form().rstrip())


def _recipe(path: Path, finding: Any) -> Recipe:
    """Return the recipe of the environment that a finding names.

    Raises ``UsageError`` for one that a file must not choose.
    """
    from ..environments.names import recipe_named_by_file

    try:
        return recipe_named_by_file(finding.environment)
    except UsageError as error:
        raise UsageError(
            f"{path}: environment: {error}. If you trust it, pass it, or another one, with --env"
        ) from None


def _paths(arguments: list[Path]) -> list[Path]:
    """Return the files, with folders replaced by the findings in them."""
    paths = [
        path
        for argument in arguments
        for path in (sorted(argument.glob("*.json")) if argument.is_dir() else [argument])
    ]
    if not paths:
        raise UsageError(f"{', '.join(map(str, arguments))}: there are no findings (*.json)")
    return paths


COMMANDS = {
    "schemas": schemas,
    "parsers": parsers,
    "api": api,
    "engines": engines,
    "lifecycle": lifecycle,
    "replay": replay,
    "report": report,
}
