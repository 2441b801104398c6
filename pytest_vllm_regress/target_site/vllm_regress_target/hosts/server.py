"""The server role: run ``vllm serve`` in this process."""

import os
import sys
from multiprocessing import resource_tracker

from .. import calls
from ..dialect import commandline, engines, installed, parsing
from ..dialect.plan import plan
from ..protocol import Frame, FrameSocket


def run(channel: FrameSocket, request: Frame) -> int:
    """Answer one ``serve`` request with the command line, then run vLLM's command until it ends."""
    channel.send({"event": "ready"})
    arguments = channel.receive()
    commandline.remember_sources()
    try:
        spec = arguments["spec"]
        words = spec.get("command_line")
        server_plan = plan(spec, "serve") if words is None else commandline.given(spec)
        engines.prepare_process(server_plan, "serve")
        argv, main = commandline.serve_command(server_plan, words)
        argv += ["--host", arguments["host"], "--port", str(arguments["port"])]
    except BaseException as error:
        channel.send(calls.failure(error))
        return 1
    if arguments["api_key"]:
        os.environ["VLLM_API_KEY"] = arguments[
            "api_key"
        ]  # in the environment, so that process lists do not show it
    tool_parser = commandline.value_of(argv, "--tool-call-parser")
    facts = {
        "tool_parser": tool_parser,
        "reads_every_call": bool(tool_parser) and parsing.reads_every_call(tool_parser),
        "argv": argv,
        "env": server_plan.env,
        "notes": server_plan.notes,
        "sound_needs": installed.sound_needs(),
    }
    channel.send({"ok": True, "value": facts})
    sys.argv = argv
    # As in a separate server process. Otherwise it would be the engine's child and die when vLLM
    # kills the engine's process tree.
    resource_tracker.ensure_running()
    status = main()
    return status if isinstance(status, int) else 0
