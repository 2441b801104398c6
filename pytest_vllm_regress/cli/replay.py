"""``vllm-regress replay``: ask again what a search found, in the same environment or another one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..engines.spec import front_named
from ..errors import BuildError, UsageError
from ..util.validation import shown
from .context import HELP, OK, UNBUILT, UNEXPECTED, AsJson, print_json, say, warn

if TYPE_CHECKING:
    from ..engines.session import Session
    from ..fuzz.artefact import Answer, Artefact

EPILOG = "Exit codes: 0 FIXED, all of them; 1 some STILL FAILS; 2 usage or bad input; 3 some CANNOT RUN and none still fails."
app = typer.Typer(context_settings=HELP, add_completion=False)


@app.command(epilog=EPILOG)
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
        checker = Checker(session, environment, artefact.backend, artefact.allowance)
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
