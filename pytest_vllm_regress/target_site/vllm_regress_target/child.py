"""A child process: the loop that answers the controller, and the probe role. Engine and server roles live beside it."""

import atexit
import contextlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
from typing import Any, Callable, Dict

from .protocol import Frame, FrameSocket, PeerClosed, ProtocolViolation

Operation = Callable[..., Any]


def main(channel: FrameSocket, request: Frame) -> int:
    """Become the child ``request`` describes, answer until told to stop; the result is the exit status."""
    _move_in(request)
    role = request["role"]
    try:
        if role == "server":
            from . import serverhost

            return serverhost.run(channel, request)
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


def failure(error: BaseException) -> Frame:
    """The frame that reports an exception: class name, message and traceback, as the target words them."""
    return {
        "ok": False,
        "type": "{}.{}".format(type(error).__module__, type(error).__qualname__),
        "message": _bounded(str(error), 20000),
        "traceback": _bounded("".join(traceback.format_exception(type(error), error, error.__traceback__)), 60000),
    }


def load_function(file: str, name: str) -> Operation:
    """The plain function ``name`` of the probe file ``file``."""
    module = _MODULES.get(file)
    if module is None:
        spec = importlib.util.spec_from_file_location("vllm_regress_probe_{}".format(len(_MODULES)), file)
        if spec is None or spec.loader is None:
            raise ImportError("cannot load the probe file {}".format(file))
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # so that what it defines can be pickled
        spec.loader.exec_module(module)
        _MODULES[file] = module
    function = getattr(module, name, None)
    if not inspect.isfunction(function) or name.startswith("_"):
        offered = sorted(n for n, f in vars(module).items() if inspect.isfunction(f) and not n.startswith("_"))
        raise LookupError("{} has no probe function {!r}; it offers {}".format(file, name, ", ".join(offered) or "none"))
    return function


_MODULES: Dict[str, Any] = {}


class ProbeHost:
    """Answers ``call``: one function of a probe file, JSON arguments, a JSON reply."""

    def call(self, file: str, function: str, arguments: Dict[str, Any]) -> Any:
        return load_function(file, function)(**arguments)

    def stop(self) -> None:
        """What libraries left for the exit of the interpreter: Ray's daemons, for one."""
        atexit._run_exitfuncs()


def _host(role: str, channel: FrameSocket) -> Any:
    if role == "probe":
        return ProbeHost()
    if role == "engine":
        from . import enginehost

        return enginehost.EngineHost(channel)
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
            reply = failure(error)
        channel.send(reply)
        if operation == "stop":
            return


def _move_in(request: Frame) -> None:
    for name, value in request.get("env", {}).items():
        os.environ[name] = value
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    os.chdir(request["cwd"])


def _leave() -> None:
    """What a normal interpreter exit would run, minus the parts that belong to the agent this process was forked from."""
    from multiprocessing import util

    with contextlib.suppress(Exception):
        util._exit_function()  # type: ignore[attr-defined]
    sys.stdout.flush()
    sys.stderr.flush()


def _bounded(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return "{}\n[... {} characters left out ...]\n{}".format(text[:half], len(text) - limit, text[-half:])
