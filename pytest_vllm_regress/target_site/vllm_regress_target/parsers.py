"""vLLM's tool and reasoning parsers by themselves, for probes: what a parser makes of a text that is whole, and of the same text in pieces.

The oracle is one for all of them: however a text is cut, what is streamed must add up to what the whole text parses to. vLLM is imported
inside functions; where a class stands differs by version and is looked for.
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
    """What the tool parser ``parser`` makes of the pieces joined ("whole"), one by one ("streamed"), and by characters ("characters").

    ``tokenizer``: a checkpoint's path. ``markers``: tokens that the parser looks for in its vocabulary, added there. ``tools``:
    function definitions as the API takes them. Each of the three has ``content`` (text outside calls) and ``calls``: of each
    its name and arguments (text). Raises ``Unsupported`` where this vLLM has no such parser.
    """
    words = _tokenizer(tokenizer, markers)
    make = _tool_parser(parser)  # before the request: a vLLM without parsers refuses one that has tools
    request = _request(tools)
    found = make(words, request).extract_tool_calls("".join(pieces), request)
    whole = {
        "content": found.content or "",
        "calls": [{"name": each.function.name, "arguments": each.function.arguments} for each in found.tool_calls],
    }
    streamed = _streamed_calls(make(words, request), words, pieces, request)
    characters = _streamed_calls(make(words, request), words, _characters("".join(pieces), markers), request)
    return {"whole": whole, "streamed": streamed, "characters": characters}


def reasoning(tokenizer: str, parser: str, pieces: Sequence[str], markers: Sequence[str] = ()) -> Json:
    """As ``tool_calls`` for the reasoning parser ``parser``: each of the three has ``reasoning`` and ``content``."""
    words = _tokenizer(tokenizer, markers)
    request = _request(())
    try:
        kind = importlib.import_module("vllm.reasoning").ReasoningParserManager.get_reasoning_parser(parser)
    except (KeyError, ImportError) as error:
        raise Unsupported(
            "this vLLM has no reasoning parser {!r}: {}".format(parser, error), refused_by=_vllm()
        ) from None
    once = kind(words)
    extract = getattr(once, "extract_reasoning", None) or once.extract_reasoning_content
    thought, content = extract("".join(pieces), request)
    return {
        "whole": {"reasoning": thought or "", "content": content or ""},
        "streamed": _streamed_reasoning(kind(words), words, pieces),
        "characters": _streamed_reasoning(kind(words), words, _characters("".join(pieces), markers)),
    }


def _streamed_calls(parser: Any, words: Any, pieces: Sequence[str], request: Any) -> Json:
    streamed: Json = {"content": "", "calls": []}
    last = None
    for step in _steps(words, pieces):
        last = parser.extract_tool_calls_streaming(*step, request)
        _add(streamed, last)
    if last is not None and last.tool_calls:
        _flush(parser, streamed)
    return streamed


def _streamed_reasoning(parser: Any, words: Any, pieces: Sequence[str]) -> Json:
    extract = getattr(parser, "extract_reasoning_streaming", None) or parser.extract_reasoning_content_streaming
    streamed = {"reasoning": "", "content": ""}
    for step in _steps(words, pieces):
        delta = extract(*step)
        if delta is not None:
            streamed["reasoning"] += (
                getattr(delta, "reasoning", None) or getattr(delta, "reasoning_content", None) or ""
            )
            streamed["content"] += delta.content or ""
    return streamed


def _characters(text: str, markers: Sequence[str]) -> List[str]:
    """The text cut as finely as tokens may be: each marker is one piece, and so is each other character."""
    if not markers:
        return list(text)
    parts = re.split("({})".format("|".join(map(re.escape, markers))), text)
    return [piece for part in parts for piece in ([part] if part in markers else part)]


def _tool_parser(name: str) -> Any:
    module = _first(_TOOL_MANAGERS)
    try:
        kind = module.ToolParserManager.get_tool_parser(name)
    except KeyError as error:
        raise Unsupported("this vLLM has no tool parser {!r}: {}".format(name, error), refused_by=_vllm()) from None
    takes_tools = "tools" in inspect.signature(kind.__init__).parameters
    return lambda words, request: kind(words, request.tools) if takes_tools else kind(words)


def _request(tools: Sequence[Json]) -> Any:
    kind = _first(_REQUESTS).ChatCompletionRequest
    asked: Json = {"model": "m", "messages": [{"role": "user", "content": "?"}], "stream": True}
    return kind(**asked, tools=list(tools), tool_choice="auto") if tools else kind(**asked)


def _first(names: Sequence[str]) -> Any:
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise Unsupported("this vLLM has none of {}".format(", ".join(names)), refused_by=_vllm())


def _tokenizer(path: str, markers: Sequence[str]) -> Any:
    from transformers import AutoTokenizer

    words = AutoTokenizer.from_pretrained(path)
    missing = [marker for marker in markers if marker not in words.get_vocab()]
    words.add_special_tokens({"additional_special_tokens": [*words.all_special_tokens, *missing]})
    return words


def _steps(words: Any, pieces: Sequence[str]) -> Any:
    """The arguments of each streaming call: texts and token ids before, now, and the difference."""
    text, ids = "", []  # type: ignore[var-annotated]
    for piece in pieces:
        new = words.encode(piece, add_special_tokens=False)
        yield text, text + piece, piece, list(ids), ids + new, new
        text, ids = text + piece, ids + new


def _add(streamed: Json, delta: Optional[Any]) -> None:
    """One delta, put together as a client does it: by the index of the call."""
    if delta is None:
        return
    streamed["content"] += delta.content or ""
    calls: List[Json] = streamed["calls"]
    for each in delta.tool_calls or ():
        while len(calls) <= each.index:
            calls.append({"name": "", "arguments": ""})
        function = each.function
        if isinstance(function, dict):  # some versions hand on plain values
            name, arguments = function.get("name"), function.get("arguments")
        else:
            name, arguments = (function.name, function.arguments) if function is not None else (None, None)
        calls[each.index]["name"] += name or ""
        calls[each.index]["arguments"] += arguments or ""


def _flush(parser: Any, streamed: Json) -> None:
    """What the server adds to a last delta that belongs to a call: arguments that the parser has parsed and not streamed."""
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
