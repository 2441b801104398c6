"""A child process: the loop that answers the controller's requests, and the probe role.

The other roles are in ``hosts``.
"""

import atexit
import gc
import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from typing import Any

from . import calls, spawning
from .dialect import held
from .protocol import Frame, FrameSocket, PeerClosed, ProtocolViolation


def main(channel: FrameSocket, request: Frame) -> int:
    """Take the role that ``request`` names and answer requests until ``stop``. Returns the exit
    status.

    After a KeyboardInterrupt the process ends by SIGINT, as Python itself ends.
    """
    _set_up_process(request)
    role = request["role"]
    interrupted = False
    try:
        held.watch()
        if role == "server":
            from .hosts import server

            return server.run(channel, request)
        host = _host(role, channel)
        _answer(channel, host)
        return 0
    except PeerClosed:
        return 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        traceback.print_exc()
        interrupted = isinstance(error, KeyboardInterrupt)
        return 1
    finally:
        _run_exit_functions()
        if interrupted:
            spawning.die_of(signal.SIGINT)


class ProbeHost:
    """Answers ``call``, which calls a function of a probe file with JSON arguments and returns its
    JSON value."""

    def call(self, file: str, function: str, arguments: dict[str, Any]) -> Any:
        return calls.load_function(file, function)(**arguments)

    def stop(self) -> None:
        """Run the exit functions of libraries; Ray, for example, ends its daemons there."""
        atexit._run_exitfuncs()


def _host(role: str, channel: FrameSocket) -> Any:
    if role == "probe":
        return ProbeHost()
    if role == "engine":
        from .hosts import engine

        return engine.EngineHost(channel)
    raise ValueError(f"unknown role {role!r}")


def _answer(channel: FrameSocket, host: Any) -> None:
    channel.send({"event": "ready"})
    while True:
        request = channel.receive()
        operation = request.pop("op", None)
        try:
            if not isinstance(operation, str) or operation.startswith("_"):
                raise ValueError(f"not an operation: {operation!r}")
            value = getattr(host, operation)(**request)
            reply = {"ok": True, "value": value}
            json.dumps(
                value
            )  # fails here, so that a value that is not JSON is reported as the probe's error
        except (PeerClosed, ProtocolViolation):
            raise
        except BaseException as error:
            reply = calls.failure(error)
        channel.send(reply)
        if operation == "stop":
            return


def _set_up_process(request: Frame) -> None:
    if request.get("start_method") == "spawn":
        os.environ[spawning.DISABLED] = "1"
    elif os.environ.get("VLLM_REGRESS_DEVICE") != "gpu":
        os.register_at_fork(after_in_child=_stay_frozen)
    take_place(request)
    _import_from(request.get("import_path", []))


def take_place(request: Frame) -> None:
    """Give this process the variables, the log and the working directory of ``request``."""
    os.environ.update(request.get("env", {}))
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    os.chdir(request["cwd"])


def _import_from(folders: list[str]) -> None:
    """Let this process and those below it import modules from ``folders``: after our own modules,
    before those of the environment."""
    own = os.environ.get("PYTHONPATH", "")
    at = sys.path.index(own) + 1 if own in sys.path else 1
    sys.path[at:at] = folders
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [own, *folders]))


def _stay_frozen() -> None:
    """Disable ``gc.unfreeze``.

    An engine core calls it at its end and collects the agent's modules, too, which takes most of a
    second for nothing.
    """
    gc.unfreeze = lambda: None


def _run_exit_functions() -> None:
    """Run multiprocessing's exit functions and flush the streams.

    The agent's other exit functions, which this fork inherited, are not run.
    """
    from multiprocessing import util

    with suppress(Exception):
        util._exit_function()  # type: ignore[attr-defined]
    sys.stdout.flush()
    sys.stderr.flush()
