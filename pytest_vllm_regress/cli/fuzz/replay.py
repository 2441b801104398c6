"""``vllm-regress replay``: ask findings again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...engines.spec import front_named
from ...errors import BuildError, UsageError
from ..context import OK, UNBUILT, UNEXPECTED, AsJson, print_json, say, warn

if TYPE_CHECKING:
    from ...engines.session import Session
    from ...environments.recipes import Recipe
    from ...fuzz.api.finding import ApiFinding
    from ...fuzz.artefact import Answer, Artefact
    from ...fuzz.engines.finding import EngineFinding
    from ...fuzz.lifecycle.finding import StoryFinding
    from ...fuzz.parsers.finding import ParserFinding

    AnyFinding = Artefact | ApiFinding | EngineFinding | ParserFinding | StoryFinding

EPILOG = "Exit codes: 0 all are FIXED; 1 at least one STILL FAILS; 2 usage or bad input; 3 at least one CANNOT RUN and none STILL FAILS."


def replay(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|DIR...",
            help="Findings written by `vllm-regress fuzz`, or folders of findings.",
        ),
    ],
    env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Environment to use instead of the one where it was found."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check whether findings still fail.

    Prints STILL FAILS, FIXED or CANNOT RUN for each file."""
    from ...engines.standalone import bare_session
    from ...fuzz.api.finding import ApiFinding
    from ...fuzz.api.starting import LIMITS
    from ...fuzz.artefact import Answer

    artefacts = [(path, _load(path)) for path in _paths(files)]
    recipes = {} if env else {path: _recipe(path, artefact) for path, artefact in artefacts}
    answers = []
    limits = LIMITS if any(isinstance(artefact, ApiFinding) for _, artefact in artefacts) else None
    with (
        bare_session(warn, limits=limits) as session,
        contextlib.closing(_Checkers(session)) as checkers,
    ):
        for path, artefact in artefacts:
            answer, words = checkers.answer(artefact, env or recipes[path])
            answers.append({"file": str(path), "answer": answer.value, "words": words})
            if not as_json:
                say(f"{answer.value:11}  {path}: {words}")
    if as_json:
        print_json(answers)
    kinds = {entry["answer"] for entry in answers}
    raise typer.Exit(
        UNEXPECTED if Answer.STILL_FAILS in kinds else UNBUILT if Answer.CANNOT_RUN in kinds else OK
    )


def _load(path: Path) -> AnyFinding:
    from ...fuzz import artefact
    from ...fuzz.api import finding as of_api
    from ...fuzz.engines import finding as of_engines
    from ...fuzz.lifecycle import finding as of_lifecycle
    from ...fuzz.parsers import finding as of_parsers
    from ...util.documents import load_json

    document = load_json(path, artefact.MAX_BYTES, what="a finding")
    if of_api.is_api_finding(document):
        return of_api.load(path)
    if of_engines.is_engine_finding(document):
        return of_engines.load(path)
    if of_lifecycle.is_story_finding(document):
        return of_lifecycle.load(path)
    return of_parsers.load(path) if of_parsers.is_parser_finding(document) else artefact.load(path)


def _recipe(path: Path, artefact: AnyFinding) -> Recipe:
    """Return the recipe of the environment that a finding names.

    Raises ``UsageError`` for one that a file must not choose.
    """
    from ...environments.names import recipe_named_by_file

    try:
        return recipe_named_by_file(artefact.environment)
    except UsageError as error:
        raise UsageError(
            f"{path}: environment: {error}. If you trust it, pass it, or another one, with --env"
        ) from None


class _Checkers:
    """Checkers of a session: one for each hunter and environment, so that the findings of a folder
    share its servers."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._made: dict[tuple[str, str], Any] = {}

    def answer(self, artefact: AnyFinding, chosen: str | Recipe) -> tuple[Answer, str]:
        """Ask a finding again, in an environment or in that of a recipe."""
        from ...environments.cache import EnvironmentCache
        from ...errors import ChildError, Unsupported
        from ...fuzz.artefact import Answer, Artefact

        environment = chosen if isinstance(chosen, str) else chosen.name
        try:
            if not isinstance(chosen, str):
                EnvironmentCache().ensure(
                    chosen, progress=warn
                )  # the session would resolve the name without hashes
            if isinstance(artefact, Artefact):
                return self._of_schema(artefact, environment)
            checker, replay, prefix = self._of_hunter(artefact, environment)
            answer, words = replay(artefact, checker)
            return Answer(answer), f"{prefix}vLLM {checker.version}: {words}"
        except (BuildError, Unsupported, ChildError) as error:
            return Answer.CANNOT_RUN, str(error.args[0])

    def close(self) -> None:
        """Stop what the checkers started."""
        for checker in self._made.values():
            if hasattr(checker, "close"):
                checker.close()

    def _once(self, hunter: str, environment: str, make: Callable[[], Any]) -> Any:
        if (hunter, environment) not in self._made:
            self._made[hunter, environment] = make()
        return self._made[hunter, environment]

    def _of_hunter(
        self, finding: Any, environment: str
    ) -> tuple[Any, Callable[[Any, Any], tuple[str, str]], str]:
        """Return the checker of a finding, the function that asks it again, and what the answer
        begins with."""
        from ...fuzz.api import finding as of_api
        from ...fuzz.api.checker import ApiChecker
        from ...fuzz.api.starting import ServerStarter
        from ...fuzz.engines import finding as of_engines
        from ...fuzz.engines.checker import PairChecker
        from ...fuzz.lifecycle import finding as of_lifecycle
        from ...fuzz.lifecycle.checker import StoryChecker
        from ...fuzz.parsers import finding as of_parsers
        from ...fuzz.parsers.checker import ParserChecker

        session = self._session
        if isinstance(finding, of_api.ApiFinding):
            checker = self._once(
                "api", environment, lambda: ApiChecker(ServerStarter(session, environment))
            )
            return checker, of_api.replay, ""
        if isinstance(finding, of_engines.EngineFinding):
            checker = self._once("engines", environment, lambda: PairChecker(session, environment))
            return checker, of_engines.replay, f"pair {finding.pair} of "
        if isinstance(finding, of_lifecycle.StoryFinding):
            checker = self._once(
                "lifecycle", environment, lambda: StoryChecker(session, environment)
            )
            return checker, of_lifecycle.replay, ""
        checker = self._once("parsers", environment, lambda: ParserChecker(session, environment))
        return checker, of_parsers.replay, f"{finding.parser} of "

    def _of_schema(self, artefact: Artefact, environment: str) -> tuple[Answer, str]:
        from ...fuzz.artefact import replay
        from ...fuzz.checker import Checker
        from ...fuzz.engine_checker import EngineChecker

        session = self._session
        checker = Checker(session, environment, artefact.backend, artefact.replay_allowance)
        try:
            asker: Checker | EngineChecker = checker
            if artefact.front != "grammar":
                front = front_named(artefact.front)
                asker = EngineChecker(session, session.target(environment), artefact.backend, front)
            answer, words = replay(artefact, asker)
            return answer, f"{artefact.backend} {checker.version}: {words}"
        finally:
            checker.close()


def _paths(arguments: list[Path]) -> list[Path]:
    """Return the files, with folders replaced by the findings in them."""
    paths = [
        path
        for argument in arguments
        for path in (_findings_in(argument) if argument.is_dir() else [argument])
    ]
    if not paths:
        raise UsageError(f"{', '.join(map(str, arguments))}: there are no findings (*.json)")
    return paths


def _findings_in(folder: Path) -> list[Path]:
    """Return the findings in a folder: all JSON files but the journal of a campaign."""
    return sorted(path for path in folder.glob("*.json") if path.name != "campaign.json")
