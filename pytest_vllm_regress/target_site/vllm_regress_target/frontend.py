"""Parts of vLLM's front-end without an engine, for probes: its handling of schemas, conversations, command lines and streamed text.

vLLM is imported inside the functions. The module of a part differs by version, so several are tried.
"""

import importlib
import pathlib
import tempfile
from typing import Any, Dict, List, Optional

from . import Unsupported

Json = Dict[str, Any]


def is_unsupported_by_xgrammar(schema: Json) -> bool:
    """Return vLLM's own verdict on whether xgrammar does not support a schema."""
    check = _named("has_xgrammar_unsupported_json_features", "vllm.v1.structured_output.backend_xgrammar")
    return bool(check(schema))


def conversation(arguments: str) -> List[Json]:
    """Return the messages that vLLM passes to a chat template, after an earlier tool call with these arguments."""
    prepare = _named("_postprocess_messages", "vllm.renderers.chat_utils.chat_message", "vllm.entrypoints.chat_utils")
    function = {"name": "add", "arguments": arguments}
    messages = [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}]
    prepare(messages)
    return messages


def port_from_file(joined: bool) -> Optional[int]:
    """Return the port that vLLM's command-line parser reads from a file given as ``--config=FILE`` (``joined``) or ``--config FILE``."""
    parser = _named("FlexibleArgumentParser", "vllm.utils.argparse_utils", "vllm.utils")()
    parser.add_argument("serve")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--config")
    parser.add_argument("--port", type=int)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "config.yaml")
        file.write_text("port: 1234\n")
        option = ["--config={}".format(file)] if joined else ["--config", str(file)]
        port: Optional[int] = parser.parse_args(["serve", "m", *option]).port
        return port


def streamed_text(tokenizer: str, prompt: List[str], answer: List[str], held_back: int) -> str:
    """Return the text that vLLM's detokenizer streams for ``answer`` after ``prompt``.

    ``tokenizer``: path of a checkpoint. The texts of the prompt and of the answer are tokenized one by one. ``held_back``: number of tokens at the
    beginning of the answer that count as part of the prompt.
    """
    import msgspec
    from transformers import AutoTokenizer
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    encoder = AutoTokenizer.from_pretrained(tokenizer)
    prompt_ids, answer_ids = ([token for text in texts for token in encoder.encode(text)] for texts in (prompt, answer))
    prompt_ids, answer_ids = prompt_ids + answer_ids[:held_back], answer_ids[held_back:]
    required = {
        field.name: None
        for field in msgspec.structs.fields(EngineCoreRequest)
        if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
    }
    values = {
        "request_id": "r",
        "prompt_token_ids": prompt_ids,
        "sampling_params": SamplingParams(max_tokens=len(answer_ids)),
    }
    detokenizer = IncrementalDetokenizer.from_new_request(encoder, EngineCoreRequest(**{**required, **values}))
    text = ""
    for token in answer_ids:
        detokenizer.update([token], False)
        text += detokenizer.get_next_output_text(False, True)
    return text


def _named(name: str, *modules: str) -> Any:
    """Return the attribute ``name`` of the first of ``modules`` that has it."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise Unsupported("this vLLM has no {} in {}".format(name, " or ".join(modules)), refused_by=_vllm())


def _vllm() -> str:
    import vllm

    return "vLLM {}".format(vllm.__version__)
