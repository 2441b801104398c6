"""Parts of vLLM's front-end by themselves, for probes: what it does with a schema, a conversation, a request, a command line, before any engine.

vLLM is imported inside functions; where a part stands differs by version and is looked for.
"""

import importlib
import pathlib
import tempfile
from typing import Any, Dict, List, Optional

from . import Unsupported

Json = Dict[str, Any]


def is_beyond_xgrammar(schema: Json) -> bool:
    """vLLM's own check of what xgrammar does not support."""
    check = _named("has_xgrammar_unsupported_json_features", "vllm.v1.structured_output.backend_xgrammar")
    return bool(check(schema))


def conversation(arguments: str) -> List[Json]:
    """What a chat template gets of an earlier call with these arguments: the messages after vLLM has prepared them."""
    prepare = _named("_postprocess_messages", "vllm.renderers.chat_utils.chat_message", "vllm.entrypoints.chat_utils")
    function = {"name": "add", "arguments": arguments}
    messages = [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}]
    prepare(messages)
    return messages


def port_from_file(joined: bool) -> Optional[int]:
    """The port that vLLM's parser of command lines takes from a file given as ``--config=FILE`` (``joined``) or ``--config FILE``."""
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
    """What vLLM's detokenizer streams of ``answer`` after ``prompt``. ``held_back``: tokens at the prompt's end that belong to the answer.

    ``tokenizer``: a checkpoint's path. Each text of the prompt and of the answer is made tokens by itself.
    """
    import msgspec
    from transformers import AutoTokenizer
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    words = AutoTokenizer.from_pretrained(tokenizer)
    given, said = ([each for text in texts for each in words.encode(text)] for texts in (prompt, answer))
    given, said = given + said[:held_back], said[held_back:]
    needed = {
        field.name: None
        for field in msgspec.structs.fields(EngineCoreRequest)
        if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
    }
    known = {"request_id": "r", "prompt_token_ids": given, "sampling_params": SamplingParams(max_tokens=len(said))}
    detokenizer = IncrementalDetokenizer.from_new_request(words, EngineCoreRequest(**{**needed, **known}))
    text = ""
    for token in said:
        detokenizer.update([token], False)
        text += detokenizer.get_next_output_text(False, True)
    return text


def _named(name: str, *modules: str) -> Any:
    """What is called ``name`` in the first of ``modules`` that has it."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise Unsupported("this vLLM has no {} in {}".format(name, " or ".join(modules)), refused_by=_vllm())


def _vllm() -> str:
    import vllm

    return "vLLM {}".format(vllm.__version__)
