"""``vllm-regress ask``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ChildError, Unsupported, UsageError
from .context import UNEXPECTED, Device, Environment, invocation, print_json, warn

if TYPE_CHECKING:
    from ..engines.session import Session

EPILOG = (
    "Exit codes: 0 answered, or else the exit status of the command; 1 vLLM or the probe failed; "
    "2 usage or bad input; 3 the environment could not be built; 130 interrupted."
)


def ask(
    context: typer.Context,
    env: Environment,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE",
            help="Arguments of the probe: JSON, or else text; {model} is the path of the tiny checkpoint.",
        ),
    ] = None,
    probe: Annotated[
        str | None,
        typer.Option(
            metavar="FILE:FUNCTION",
            help="Call this function, or a built-in one (parsers:tool_calls), and print its value.",
        ),
    ] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Field of the server's EngineSpec: JSON, or else text; repeatable.",
        ),
    ] = None,
    show_log: Annotated[
        bool,
        typer.Option(
            "--show-log", help="At the end print what the server logged, on standard error."
        ),
    ] = False,
    device: Device = None,
) -> None:
    """Call a probe or a server by hand in any environment.

    With --probe, a function of a file is called in the environment. Otherwise a server is started
    there, and the command after -- is run: {url}, {key} and {model} in its arguments are replaced;
    VLLM_REGRESS_URL, VLLM_REGRESS_MODEL, OPENAI_BASE_URL and OPENAI_API_KEY are set.

    Examples: ask --env vllm-0.8.5 --probe probe.py:count n=8; ask --env vllm-0.8.5 --set tp=2 --
    sh -c 'curl -H "Authorization: Bearer $OPENAI_API_KEY" $OPENAI_BASE_URL/models'
    """
    from ..engines.standalone import bare_session

    command = invocation(context)
    words = command.pytest_args
    if (probe is None) != bool(words):
        raise UsageError(
            "ask: give either --probe FILE:FUNCTION, or after -- the command that asks a server"
        )
    if probe and (show_log or fields):
        raise UsageError("ask: --set and --show-log are about a server, and --probe starts none")
    # Standard output is the command's, or JSON.
    command.confirm_downloads([env], warn)
    try:
        with bare_session(warn, device=device or "auto") as session:
            if probe is not None:
                print_json(_probed(session, env, probe, _values(arguments or ())))
            else:
                raise typer.Exit(_served(session, env, _values(fields or ()), words, show_log))
    except (ChildError, Unsupported) as error:
        warn(f"vllm-regress: {error}")
        raise typer.Exit(UNEXPECTED) from None


def _probed(session: Session, environment: str, probe: str, arguments: dict[str, Any]) -> Any:
    from ..engines.standalone import probe_in

    file, _, function = probe.rpartition(":")
    in_file = file.endswith(".py")
    if in_file and not Path(file).is_file():
        raise UsageError(f"--probe {probe}: there is no file {file}")
    target = session.target(environment)
    paths = {
        name: session.model_path("text", target.device)
        for name, value in arguments.items()
        if value == "{model}"
    }
    return probe_in(session, target, Path(file).resolve())(
        function if in_file else probe, **{**arguments, **paths}
    )


def _served(
    session: Session,
    environment: str,
    fields: dict[str, Any],
    command: Sequence[str],
    show_log: bool,
) -> int:
    from ..engines.spec import EngineSpec
    from ..engines.standalone import run_client

    spec = EngineSpec.create(**fields).relative_to(Path.cwd())
    server = session.start("serve", session.target(environment), spec, user="ask", fresh=False)
    status = run_client(server, command)
    if show_log:
        warn(server.log())
    return status


def _values(words: Sequence[str]) -> dict[str, Any]:
    """Parse words ``NAME=VALUE``. A value that is not JSON is text."""
    values = {}
    for word in words:
        name, separator, text = word.partition("=")
        if not separator:
            raise UsageError(f"{word!r}: write NAME=VALUE")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values
