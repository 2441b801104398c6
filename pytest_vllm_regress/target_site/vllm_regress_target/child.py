"""A child process: the loop that answers the controller, and the probe role. The other roles live in ``hosts``."""

import atexit
import contextlib
import gc
import json
import os
import sys
import traceback
from typing import Any, Dict

from . import calls, spawning
from .protocol import Frame, FrameSocket, PeerClosed, ProtocolViolation


def main(channel: FrameSocket, request: Frame) -> int:
    """Become the child ``request`` describes, answer until told to stop; the result is the exit status."""
    _move_in(request)
    role = request["role"]
    try:
        if role == "server":
            from .hosts import server

            return server.run(channel, request)
        host = _host(role, channel)
        _answer(channel, host)
        return 0
    except PeerClosed:
        return 0
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        _leave()


class ProbeHost:
    """Answers ``call``: one function of a probe file, JSON arguments, a JSON reply."""

    def call(self, file: str, function: str, arguments: Dict[str, Any]) -> Any:
        return calls.load_function(file, function)(**arguments)

    def stop(self) -> None:
        """What libraries left for the exit of the interpreter: Ray's daemons, for one."""
        atexit._run_exitfuncs()


def _host(role: str, channel: FrameSocket) -> Any:
    if role == "probe":
        return ProbeHost()
    if role == "grammar":
        from .hosts import grammar

        return grammar.GrammarHost()
    if role == "engine":
        from .hosts import engine

        return engine.EngineHost(channel)
    raise ValueError("unknown role {!r}".format(role))


def _answer(channel: FrameSocket, host: Any) -> None:
    channel.send({"event": "ready"})
    while True:
        request = channel.receive()
        operation = request.pop("op", None)
        try:
            if not isinstance(operation, str) or operation.startswith("_"):
                raise ValueError("not an operation: {!r}".format(operation))
            value = getattr(host, operation)(**request)
            reply = {"ok": True, "value": value}
            json.dumps(value)  # a value that is not JSON is the probe's error, with the probe's traceback
        except (PeerClosed, ProtocolViolation):
            raise
        except BaseException as error:
            reply = calls.failure(error)
        channel.send(reply)
        if operation == "stop":
            return


def _move_in(request: Frame) -> None:
    if request.get("start_method") == "spawn":
        os.environ[spawning.LEAVE] = "1"
    elif os.environ.get("VLLM_REGRESS_DEVICE") != "gpu":
        os.register_at_fork(after_in_child=_stay_frozen)
    for name, value in request.get("env", {}).items():
        os.environ[name] = value
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    os.chdir(request["cwd"])


def _stay_frozen() -> None:
    """An engine core that ends thaws what was frozen, the agent's modules with it, and collects: most of a second, for memory that goes with it."""
    gc.unfreeze = lambda: None


def _leave() -> None:
    """What a normal interpreter exit would run, minus the parts that belong to the agent this process was forked from."""
    from multiprocessing import util

    with contextlib.suppress(Exception):
        util._exit_function()  # type: ignore[attr-defined]
    sys.stdout.flush()
    sys.stderr.flush()
