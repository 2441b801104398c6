"""``vllm-regress ask``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..engines.session import Session
from ..engines.spec import EngineSpec
from ..engines.standalone import bare_session, probe_in, run_client
from ..errors import ChildError, Unsupported, UsageError
from .context import (
    OK,
    UNEXPECTED,
    Device,
    Invocation,
    Names,
    print_json,
    print_log,
    values,
    warn,
)

_SERVER_ERROR = re.compile(r'HTTP/1\.[01]" 5\d\d')
"""Status of a request in the server's log."""


def ask(
    command: Invocation,
    env: str,
    arguments: Names = None,
    probe: str | None = None,
    set: Names = None,
    show_log: bool = False,
    device: Device = None,
) -> int:
    """Call a probe or a server by hand in any environment.

    With --probe, a function of a file is called in the environment. Otherwise a server is started
    there, and the command after -- is run: {url}, {key} and {model} in its arguments are replaced;
    VLLM_REGRESS_URL, VLLM_REGRESS_MODEL, OPENAI_BASE_URL and OPENAI_API_KEY are set. The server
    ends with the command; a shell, -- bash, keeps it for several requests. After a status 500, or
    an engine's end, the server's log is shown.

    Examples: ask --env vllm-0.8.5 --probe probe.py:count n=8; ask --env vllm-0.8.5 --set tp=2 --
    sh -c 'curl -H "Authorization: Bearer $OPENAI_API_KEY" $OPENAI_BASE_URL/models'

    Exit codes: 0 answered, or else the exit status of the command; 1 vLLM or the probe failed; 2
    usage or bad input; 3 the environment could not be built; 130 interrupted.
    """

    words = command.pytest_args
    if (probe is None) != bool(words):
        raise UsageError(
            "ask: give either --probe FILE:FUNCTION, or after -- the command that asks a server"
        )
    if probe and (show_log or set):
        raise UsageError("ask: --set and --show-log are about a server, and --probe starts none")
    # Standard output is the command's, or JSON.
    command.confirm_downloads([env], warn)
    try:
        with bare_session(warn, device=device or "auto") as session:
            if probe is None:
                return _served(session, env, values(set), words, show_log)
            print_json(_probed(session, env, probe, values(arguments)))
            return OK
    except (ChildError, Unsupported) as error:
        warn(f"vllm-regress: {error}")
        return UNEXPECTED


def _probed(session: Session, environment: str, probe: str, arguments: dict[str, Any]) -> Any:

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

    spec = EngineSpec.create(**fields).relative_to(Path.cwd())
    server = session.start("serve", session.target(environment), spec, user="ask", fresh=False)
    status = run_client(server, command)
    if show_log:
        print_log(server.child.logs.from_start())
    elif (dead := server.child.engine_is_dead) or _SERVER_ERROR.search(server.log()):
        what = "its engine has ended" if dead else "the server answered with an error"
        warn(f"{what}; since it was ready it logged (--show-log: also before)")
        print_log(server.log())
    return status
