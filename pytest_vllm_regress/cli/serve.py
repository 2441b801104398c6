"""``vllm-regress serve``."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from ..engines.http.control import ControlRoute
from ..engines.inputs.script_rules import Answers, answers_from
from ..engines.ports import HOST
from ..engines.server import Server
from ..engines.spec import EngineSpec
from ..engines.standalone import bare_session
from ..errors import ChildError, Unsupported, UsageError
from ..util.documents import load_json
from ..util.validation import format_value
from .context import OK, UNEXPECTED, Invocation, Names, print_unmasked, values, warn

_MAX_SCRIPT = 64 * 1024 * 1024
_CHECK_S = 1.0


def serve(
    command: Invocation,
    environment: str,
    script: Path | None = None,
    port: str = "0",
    set: Names = None,
) -> int:
    """Serve scripted answers of any release to any client.

    When the server answers, one line of JSON with its address, key and model is printed, and systemd
    is told. It ends with SIGTERM or SIGINT. The address "control" in that line, on this machine
    alone and with the same key, takes scripts and faults: POST /script, POST /fail, POST /clear,
    GET /problems.

    Examples: serve vllm-0.33.0 --script answers.json; serve vllm-0.11.2 --port 8000 --set
    'server_options={"enable_auto_tool_choice": true, "tool_call_parser": "hermes"}'

    Exit codes: 0 ended by a signal; 1 vLLM ended or did not start; 2 usage or bad input; 3 the
    environment could not be built.
    """
    answers = _read(script)
    address = address_of(port)
    command.confirm_downloads([environment], warn)
    try:
        with bare_session(warn) as session:
            spec = EngineSpec.create(**values(set)).relative_to(Path.cwd())
            server = session.start(
                "serve", session.target(environment), spec, user="serve", fresh=False
            )
            _run(server, answers, address)
            warn(f"vllm-regress: the server has ended: {server.child.failures.log_tail()}")
            return UNEXPECTED
    except KeyboardInterrupt:
        return OK
    except (ChildError, Unsupported) as error:
        warn(f"vllm-regress: {error}")
        return UNEXPECTED


def _run(server: Server, answers: Answers, address: tuple[str, int]) -> None:
    """Serve until a signal interrupts it, or until vLLM ends."""
    try:
        gateway = server.open_gateway(address)
    except OSError as error:
        raise UsageError(f"--port: {address[0]}:{address[1]}: {error.strerror or error}") from None
    if answers is not None:
        server.script(answers)
    with ControlRoute(server, warn) as control:
        ready = {
            "url": gateway.url,
            "base_url": f"{gateway.url}/v1",
            "api_key": server.api_key,
            "model": server.model,
            "control": control.url,
        }
        print_unmasked(ready)
        tell_systemd()
        while server.child.alive:
            server.child.pause(_CHECK_S)
            control.check_scripts()


def tell_systemd() -> None:
    """Say that the service is ready (sd_notify(3))."""
    if path := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.connect("\0" + path[1:] if path.startswith("@") else path)
            channel.send(b"READY=1")


def _read(script: Path | None) -> Answers:
    return None if script is None else answers_from(load_json(script, _MAX_SCRIPT))


def address_of(port: str) -> tuple[str, int]:
    """Return the address of [HOST:]PORT. Raises ``UsageError``."""
    host, _, number = port.rpartition(":")
    if not (number.isdecimal() and int(number) < 65536):
        raise UsageError(f"--port {format_value(port)}: allowed is PORT or HOST:PORT")
    return host or HOST, int(number)
