"""Batch files: run ``vllm run-batch`` over requests in OpenAI's batch format, for probes.

https://docs.vllm.ai/en/stable/examples/offline_inference/openai_batch/ describes the format: each line of the input file is a request with
``custom_id``, ``method``, ``url`` and ``body``, and each line of the output file is an answer with ``custom_id``, ``response`` and ``error``.
"""

import importlib.util
import json
import os
import pathlib
import sys
import tempfile
from typing import Any, Dict, Sequence, Union

from . import Unsupported
from .dialect import commandline, engines
from .dialect.installed import version

Json = Dict[str, Any]


def run(model: str, lines: Sequence[Union[Json, str]], options: Sequence[str] = ()) -> Json:
    """Write ``lines`` to a batch file and run vLLM's own command on it. The command starts an engine and stops it.

    ``model``: path of a checkpoint. ``lines``: requests; a string is written unchanged, so it may be invalid. ``options``: additional arguments of
    the command, such as ``["--max-model-len", "512"]``. The engine runs in eager mode. Call this once per process: the command may leave a closed
    event loop behind.

    Returns ``status``, the exit status of the command, and ``answers``, the parsed lines of the output file (empty if there is none).
    Raises whatever the command raises, and ``Unsupported`` if this vLLM has no such command.
    """
    words, command = commandline.batch_command()
    if words != ["vllm", "run-batch"] and importlib.util.find_spec(words[0]) is None:
        raise Unsupported("vLLM {} cannot run batch files".format(version()), refused_by="vLLM {}".format(version()))
    device = os.environ.get("VLLM_REGRESS_DEVICE")
    spec: Json = {"model": "", "model_path": model, "env": {}, "generation": "auto", "device": device}
    engines.prepare_process(commandline.given(spec), "serve")
    with tempfile.TemporaryDirectory() as folder:
        source, result = pathlib.Path(folder, "input.jsonl"), pathlib.Path(folder, "output.jsonl")
        source.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
        sys.argv = [*words, "-i", str(source), "-o", str(result), "--model", model, "--enforce-eager", *options]
        status: object = None
        try:
            command()
        except SystemExit as end:
            status = end.code
            if isinstance(status, str):
                print(status, file=sys.stderr)  # as Python does at the end of a program
        answers = [json.loads(line) for line in result.read_text().splitlines()] if result.exists() else []
    return {"status": status if isinstance(status, int) else int(status is not None), "answers": answers}
