"""vLLM's tool and reasoning parsers without an engine, for probes: the result of parsing a whole text, and of streaming it in pieces.

For every parser the same must hold: however the text is split, the streamed results add up to the result for the whole text. vLLM is imported inside
the functions. The module of a class differs by version, so several are tried.
"""

import importlib
import inspect
import json
import re
from typing import Any, Dict, List, Optional, Sequence

from . import Unsupported

Json = Dict[str, Any]
_TOOL_MANAGERS = ("vllm.tool_parsers", "vllm.entrypoints.openai.tool_parsers")
_REQUESTS = ("vllm.entrypoints.openai.chat_completion.protocol", "vllm.entrypoints.openai.protocol")


def tool_calls(
    tokenizer: str, parser: str, pieces: Sequence[str], tools: Sequence[Json] = (), markers: Sequence[str] = ()
) -> Json:
    """Return what the tool parser ``parser`` finds in the joined pieces ("whole"), piece by piece ("streamed"), and by characters ("characters").

    ``tokenizer``: path of a checkpoint. ``markers``: tokens that the parser needs in the vocabulary; they are added. ``tools``: function definitions
    as in the API. Each result has ``content`` (the text outside of calls) and ``calls``, with the name and arguments (text) of each. Raises
    ``Unsupported`` if this vLLM has no such parser.
    """
    encoder = _tokenizer(tokenizer, markers)
    make = _tool_parser(parser)  # before the request, because a vLLM without parsers rejects a request with tools
    request = _request(tools)
    extracted = make(encoder, request).extract_tool_calls("".join(pieces), request)
    whole = {
        "content": extracted.content or "",
        "calls": [{"name": call.function.name, "arguments": call.function.arguments} for call in extracted.tool_calls],
    }
    streamed = _streamed_calls(make(encoder, request), encoder, pieces, request)
    characters = _streamed_calls(make(encoder, request), encoder, _characters("".join(pieces), markers), request)
    return {"whole": whole, "streamed": streamed, "characters": characters}


def reasoning(tokenizer: str, parser: str, pieces: Sequence[str], markers: Sequence[str] = ()) -> Json:
    """Like ``tool_calls``, for the reasoning parser ``parser``. Each result has ``reasoning`` and ``content``."""
    encoder = _tokenizer(tokenizer, markers)
    request = _request(())
    try:
        parser_class = importlib.import_module("vllm.reasoning").ReasoningParserManager.get_reasoning_parser(parser)
    except (KeyError, ImportError) as error:
        raise Unsupported(
            "this vLLM has no reasoning parser {!r}: {}".format(parser, error), refused_by=_vllm()
        ) from None
    whole_parser = parser_class(encoder)
    extract = getattr(whole_parser, "extract_reasoning", None) or whole_parser.extract_reasoning_content
    thought, content = extract("".join(pieces), request)
    return {
        "whole": {"reasoning": thought or "", "content": content or ""},
        "streamed": _streamed_reasoning(parser_class(encoder), encoder, pieces),
        "characters": _streamed_reasoning(parser_class(encoder), encoder, _characters("".join(pieces), markers)),
    }


def _streamed_calls(parser: Any, encoder: Any, pieces: Sequence[str], request: Any) -> Json:
    streamed: Json = {"content": "", "calls": []}
    last = None
    for step in _steps(encoder, pieces):
        last = parser.extract_tool_calls_streaming(*step, request)
        _add(streamed, last)
    if last is not None and last.tool_calls:
        _flush(parser, streamed)
    return streamed


def _streamed_reasoning(parser: Any, encoder: Any, pieces: Sequence[str]) -> Json:
    extract = getattr(parser, "extract_reasoning_streaming", None) or parser.extract_reasoning_content_streaming
    streamed = {"reasoning": "", "content": ""}
    for step in _steps(encoder, pieces):
        delta = extract(*step)
        if delta is not None:
            streamed["reasoning"] += (
                getattr(delta, "reasoning", None) or getattr(delta, "reasoning_content", None) or ""
            )
            streamed["content"] += delta.content or ""
    return streamed


def _characters(text: str, markers: Sequence[str]) -> List[str]:
    """Split the text as finely as tokens can: each marker is one piece, and so is every other character."""
    if not markers:
        return list(text)
    parts = re.split("({})".format("|".join(map(re.escape, markers))), text)
    return [piece for part in parts for piece in ([part] if part in markers else part)]


def _tool_parser(name: str) -> Any:
    module = _first(_TOOL_MANAGERS)
    try:
        parser_class = module.ToolParserManager.get_tool_parser(name)
    except KeyError as error:
        raise Unsupported("this vLLM has no tool parser {!r}: {}".format(name, error), refused_by=_vllm()) from None
    takes_tools = "tools" in inspect.signature(parser_class.__init__).parameters
    return lambda encoder, request: parser_class(encoder, request.tools) if takes_tools else parser_class(encoder)


def _request(tools: Sequence[Json]) -> Any:
    request_class = _first(_REQUESTS).ChatCompletionRequest
    values: Json = {"model": "m", "messages": [{"role": "user", "content": "?"}], "stream": True}
    return request_class(**values, tools=list(tools), tool_choice="auto") if tools else request_class(**values)


def _first(names: Sequence[str]) -> Any:
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise Unsupported("this vLLM has none of {}".format(", ".join(names)), refused_by=_vllm())


def _tokenizer(path: str, markers: Sequence[str]) -> Any:
    from transformers import AutoTokenizer

    encoder = AutoTokenizer.from_pretrained(path)
    missing = [marker for marker in markers if marker not in encoder.get_vocab()]
    encoder.add_special_tokens({"additional_special_tokens": [*encoder.all_special_tokens, *missing]})
    return encoder


def _steps(encoder: Any, pieces: Sequence[str]) -> Any:
    """Yield the arguments of each streaming call: the previous and current text and their difference, and the same of the token ids."""
    text, ids = "", []  # type: ignore[var-annotated]
    for piece in pieces:
        new = encoder.encode(piece, add_special_tokens=False)
        yield text, text + piece, piece, list(ids), ids + new, new
        text, ids = text + piece, ids + new


def _add(streamed: Json, delta: Optional[Any]) -> None:
    """Add one delta to the result by the index of the call, as a client does."""
    if delta is None:
        return
    streamed["content"] += delta.content or ""
    calls: List[Json] = streamed["calls"]
    for call in delta.tool_calls or ():
        while len(calls) <= call.index:
            calls.append({"name": "", "arguments": ""})
        function = call.function
        if isinstance(function, dict):  # some versions pass plain values
            name, arguments = function.get("name"), function.get("arguments")
        else:
            name, arguments = (function.name, function.arguments) if function is not None else (None, None)
        calls[call.index]["name"] += name or ""
        calls[call.index]["arguments"] += arguments or ""


def _flush(parser: Any, streamed: Json) -> None:
    """Add what the server adds to the last delta of a call: arguments that the parser has parsed but not streamed."""
    remaining = getattr(parser, "get_remaining_unstreamed_args", None)
    if remaining is not None:
        rest = remaining()
    else:
        parsed, sent = getattr(parser, "prev_tool_call_arr", []), getattr(parser, "streamed_args_for_tool", [])
        if not parsed or not sent:
            return
        arguments = parsed[len(sent) - 1].get("arguments", {}) if len(parsed) >= len(sent) else {}
        expected = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        rest = expected[len(sent[-1]) :] if arguments and expected.startswith(sent[-1]) else ""
    if rest and streamed["calls"]:
        streamed["calls"][-1]["arguments"] += rest


def _vllm() -> str:
    import vllm

    return "vLLM {}".format(vllm.__version__)
