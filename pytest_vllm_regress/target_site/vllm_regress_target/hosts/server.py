"""The server role: this process becomes ``vllm serve``."""

import functools
import inspect
import os
import sys
from multiprocessing import resource_tracker

from .. import calls
from ..dialect import commandline, engines, installed
from ..protocol import Frame, FrameSocket


def run(channel: FrameSocket, request: Frame) -> int:
    """Answer one ``serve`` frame with the command line, then run vLLM's own command until it ends."""
    channel.send({"event": "ready"})
    asked = channel.receive()
    # Up to 0.9, each of several parsers asks for the source of each configuration class, and for each the whole module is parsed anew.
    inspect.getsource = functools.lru_cache(maxsize=None)(inspect.getsource)  # type: ignore[assignment]
    try:
        made = engines.plan(asked["spec"], "serve")
        engines.enter(made, "serve")
        argv, main = commandline.serve_command(made)
        argv += ["--host", asked["host"], "--port", str(asked["port"])]
    except BaseException as error:
        channel.send(calls.failure(error))
        return 1
    os.environ["VLLM_API_KEY"] = asked["api_key"]  # in the environment, so that no process list shows it
    facts = {"argv": argv, "env": made.env, "notes": made.notes, "sound_needs": installed.sound_needs()}
    channel.send({"ok": True, "value": facts})
    sys.argv = argv
    # As a server of its own would have one. Else it is the engine's child, and dies when vLLM kills the engine's process tree.
    resource_tracker.ensure_running()
    status = main()
    return status if isinstance(status, int) else 0
