"""Batch files: run ``vllm run-batch`` over requests in OpenAI's batch format, for probes.

https://docs.vllm.ai/en/stable/examples/offline_inference/openai_batch/ describes the format: each line of the input file is a request with
``custom_id``, ``method``, ``url`` and ``body``, and each line of the output file is an answer with ``custom_id``, ``response`` and ``error``.
"""

import gc
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
    """Run vLLM's own command over a batch file of these ``lines``, with an engine that it starts and ends.

    ``model``: path of a checkpoint. ``lines``: requests; a text is written as it is, so that it may be invalid. ``options``: further words of the
    command line, such as ``["--max-model-len", "512"]``. The engine is eager.

    Returns ``status``, the exit status of the command, and ``answers``, the lines of the output file in their order; an empty list if it wrote none.
    Raises what the command raises, and ``Unsupported`` where this vLLM has no such command.
    """
    before, (words, command) = sys.argv, commandline.batch_command()
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
        finally:
            sys.argv = before
            gc.collect()  # older releases leave the end of their engine to the garbage collector
        answers = [json.loads(line) for line in result.read_text().splitlines()] if result.exists() else []
    return {"status": status if isinstance(status, int) else int(status is not None), "answers": answers}
