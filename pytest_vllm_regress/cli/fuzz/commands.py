"""The five hunters as commands. Each supplies its own options and its hunter; ``campaign_command``
adds what all have alike."""

# Without the import of annotations from the future: typer gets them as they are evaluated here.

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from ...defaults import MAX_ENGINES
from ...errors import Unsupported, UsageError
from ...util.sizes import GIB
from ..context import OK, UNEXPECTED, TextOrJson, print_json, say, warn

if TYPE_CHECKING:
    from ...fuzz.hunter import CampaignPlan, Hunter  # in a string

EPILOG = (
    "Exit codes: 0 no problems; 1 findings; 2 usage or bad input; 3 an environment could not be "
    "built; 130 interrupted."
)
Seconds = Annotated[
    float, typer.Option(min=0.1, help="Time limit for a question; what hangs is then killed.")
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Questions at a time (default: one for two cores)."),
]
AnyHunter: TypeAlias = "Hunter[Any, Any, Any, Any]"
Made = contextlib.AbstractContextManager[AnyHunter]
Making = Callable[..., Made]


def _hunt(
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Environment to test; `fuzz schemas` takes several."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed draws the same questions.")] = 0,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            help="Budget: rounds go on until it is spent, over all resumptions (default: one round).",
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Maximum number of rounds.")] = None,
    examples: Annotated[
        int, typer.Option(min=1, help="Questions drawn for each part of a round.")
    ] = 100,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Folder for the findings and the journal, by which the same command resumes.",
        ),
    ] = Path("findings"),
    output: TextOrJson = "text",
    *,
    make: Making,
) -> None:
    """Run a campaign. The options of all hunters are those of this function."""
    from ...fuzz.campaign import Campaign
    from ...fuzz.hunter import CampaignPlan

    plan = CampaignPlan(seed, rounds if rounds or minutes else 1, minutes, examples)
    write_line = warn if output == "json" else say
    with contextlib.ExitStack() as stack:
        hunter = stack.enter_context(make(env or [], plan))
        os.makedirs(out, exist_ok=True)
        campaign = Campaign(hunter, plan, out, write_line)
        write_line(f"{hunter.title}: seed {plan.seed}")
        with hunter.lanes:
            campaign.run()
            corpus = hunter.ask_corpus(write_line)
    asked = sum(step.asked for step in campaign.steps)
    write_line(
        f"{asked} questions in {campaign.seconds:.0f} s; {len(campaign.findings)} findings in {out}"
    )
    if output == "json":
        print_json({**campaign.to_json(), "corpus": corpus})
    raise typer.Exit(UNEXPECTED if campaign.findings or any(corpus.values()) else OK)


def campaign_command(examples: int, out: str) -> Callable[[Making], Callable[..., None]]:
    """Make a command of a function that gets environments, the plan and its own options, and
    provides a hunter: a command with the options of ``_hunt``, too, some with other defaults."""

    def decorate(make: Making) -> Callable[..., None]:
        defaults = {"examples": examples, "out": Path(out)}
        common = [
            option.replace(default=defaults.get(name, option.default))
            for name, option in inspect.signature(_hunt).parameters.items()
            if name != "make"
        ]
        own = list(inspect.signature(make).parameters.values())[2:]

        @functools.wraps(make)
        def command(**options: Any) -> None:
            chosen = {option.name: options.pop(option.name) for option in own}
            _hunt(**options, make=functools.partial(make, **chosen))

        signature = inspect.Signature([common[0], *own, *common[1:]])
        command.__signature__ = signature  # type: ignore[attr-defined]  # typer reads it
        command.__annotations__ = {}
        return command

    return decorate


@contextlib.contextmanager
def _hunter(
    name: str,
    environments: Sequence[str],
    lanes: int = 1,
    engines: int = MAX_ENGINES,
    **options: Any,
) -> Iterator[AnyHunter]:
    """Provide the hunter of the only environment, with a session for each lane."""
    from ...engines.standalone import bare_session
    from ...fuzz.hunter import hunter_named

    if len(environments) != 1:
        raise UsageError("name one environment with --env, for example --env vllm-0.33.0")
    hunter = hunter_named(name)
    with contextlib.ExitStack() as stack:
        sessions = [
            stack.enter_context(bare_session(warn, max_engines=engines, limits=hunter.limits))
            for _ in range(lanes)
        ]
        try:
            yield hunter.of(sessions, environments[0], **options)
        except Unsupported as error:
            raise UsageError(f"fuzz {name}: {error.args[0]}") from None


def _lanes(jobs: int | None) -> int:
    return jobs or max(1, len(os.sched_getaffinity(0)) // 2)


@campaign_command(examples=200, out="parser-findings")
def parsers(
    environments: Sequence[str],
    plan: "CampaignPlan",
    parser: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Parser to test; repeatable (default: all that vLLM registers)."
        ),
    ] = None,
    seconds: Seconds = 30.0,
) -> Made:
    """Tool and reasoning parsers, with answers in every cut.

    Draws answers with tool calls and reasoning, writes them in each parser's format, and compares
    what every cut of the stream adds up to. Each finding becomes a file for `fuzz replay`. The same
    command resumes a campaign that was killed.
    """
    return _hunter("parsers", environments, names=parser or (), seconds=seconds)


@campaign_command(examples=80, out="api-findings")
def api(
    environments: Sequence[str],
    plan: "CampaignPlan",
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
    seconds: Seconds = 20.0,
    growth: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="REQUESTS",
            help="Also send an accepted and a refused request of each operation this often, and measure the memory (0: no).",
        ),
    ] = 0,
    jobs: Jobs = None,
) -> Made:
    """Servers, with what their own description allows, and more.

    Sends requests drawn from the server's OpenAPI description, with boundary values, and reports
    answers that no request may get. Each finding becomes a file for `fuzz replay`. The same command
    resumes a campaign that was killed.
    """
    return _hunter(
        "api",
        environments,
        seconds=seconds,
        jobs=_lanes(jobs),
        servers=server or (),
        routes=route or (),
        growth=growth,
    )


@campaign_command(examples=100, out="engine-findings")
def engines(
    environments: Sequence[str],
    plan: "CampaignPlan",
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
    seconds: Seconds = 30.0,
    max_engines: Annotated[
        int,
        typer.Option(
            min=2,
            help="Engines that stay up at the same time; each needs about half a GiB of memory.",
        ),
    ] = 8,
    jobs: Jobs = None,
) -> Made:
    """Pairs of configurations that must agree.

    Draws requests, sends them to both sides of a pair, and compares tokens, texts, finish reasons
    and log-probabilities. Each finding becomes a file for `fuzz replay`. The same command resumes a
    campaign that was killed.
    """
    lanes = _lanes(jobs)
    return _hunter(
        "engines",
        environments,
        lanes=lanes,
        engines=max(2, max_engines // lanes),
        names=pair or (),
        against=against,
        seconds=seconds,
    )


@campaign_command(examples=30, out="lifecycle-findings")
def lifecycle(environments: Sequence[str], plan: "CampaignPlan", jobs: Jobs = None) -> Made:
    """The life of a server: sleep, adapters, kills, ends.

    Sends a server requests, puts it to sleep, loads adapters, stops and kills its processes, ends
    it, and checks what became of every request. Each finding becomes a file for `fuzz replay`. The
    same command resumes a campaign that was killed.
    """
    return _hunter("lifecycle", environments, lanes=_lanes(jobs), engines=3)


@campaign_command(examples=200, out="findings")
@contextlib.contextmanager
def schemas(
    environments: Sequence[str],
    plan: "CampaignPlan",
    backend: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Backend to test; repeatable (default: all that the environment has).",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Features that schemas may use (default: those the backend claims to support).",
        ),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Maximum size of schemas, in subschemas.")] = 12,
    seconds: Seconds = 10.0,
    memory: Annotated[
        float, typer.Option(min=0.05, metavar="GIB", help="Memory limit of the backend's process.")
    ] = 2.0,
    corpus: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Also check this checkout of the JSON Schema Test Suite; repeatable.",
        ),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FRONT",
            help="Also test a whole engine (offline, serve) for problems that the grammar alone does not show; repeatable.",
        ),
    ] = None,
    statistics: Annotated[
        bool,
        typer.Option(
            "--statistics", help="Print how often each feature is drawn, without testing a backend."
        ),
    ] = False,
) -> Iterator[AnyHunter]:
    """Backends of structured output, with drawn schemas.

    Draws JSON schemas with valid and invalid instances, compares each backend with jsonschema, and
    shrinks the failures. Each finding becomes a file: `fuzz replay` asks it again, `new --finding`
    makes a case of it.
    """
    from ...engines.standalone import bare_session
    from ...fuzz.schemas.backends import Allowance
    from ...fuzz.schemas.schema_hunter import SchemaHunter
    from ...schemas import distribution
    from ...schemas.profile import as_profile

    chosen = as_profile(profile) if profile else None
    if statistics:
        drawn = distribution(
            plan.examples, profile=chosen or "full", budget=nodes, seed_value=plan.seed
        )
        say(str(drawn))
        raise typer.Exit(OK)
    with bare_session(warn) as session:
        yield SchemaHunter.installed(
            session,
            environments,
            backend or (),
            Allowance(seconds, memory * GIB),
            profile=chosen,
            nodes=nodes,
            fronts=engine or (),
            corpus=corpus or (),
        )
