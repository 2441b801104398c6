"""``vllm-regress fuzz replay``: ask findings again. ``fuzz report``: one as upstream's bug form."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import BuildError, ChildError, Unsupported, UsageError
from ..context import OK, UNBUILT, UNEXPECTED, TextOrJson, print_json, say, warn

if TYPE_CHECKING:
    from ...environments.recipes import Recipe


def replay(files: list[Path], env: str | None = None, format: TextOrJson = "text") -> int:
    """Check whether findings still fail.

    Prints STILL FAILS, FIXED or CANNOT RUN for each file.

    Exit codes: 0 all are FIXED; 1 at least one STILL FAILS; 2 usage or bad input; 3 at least one
    CANNOT RUN and none STILL FAILS.
    """
    from ...engines.standalone import bare_session
    from ...environments.cache import EnvironmentCache
    from ...fuzz.finding import ReplayAnswer
    from ...fuzz.hunter import hunter_named, load

    findings = [(path, load(path)) for path in _paths(files)]
    recipes = {} if env else {path: _recipe(path, finding) for path, finding in findings}
    kinds = {hunter_named(finding.hunter) for _, finding in findings}
    limits = next(filter(None, (kind.limits for kind in kinds)), None)
    hunters: dict[tuple[str, str], Any] = {}
    answers = []
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(bare_session(warn, limits=limits))
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
    from ...fuzz.hunter import load

    say(load(file, "api").bug_form().rstrip())


def _recipe(path: Path, finding: Any) -> Recipe:
    """Return the recipe of the environment that a finding names.

    Raises ``UsageError`` for one that a file must not choose.
    """
    from ...environments.names import recipe_named_by_file

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
