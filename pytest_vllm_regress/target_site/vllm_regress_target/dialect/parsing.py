"""How the server of the installed vLLM parses a model's answer, whole and in deltas, without an
engine.

Releases with ``Parser.parse_delta`` are asked through it, as their server does. Before it, the
server called the tool parser and the reasoning parser itself; ``Separate`` repeats that, with what
the server does to the last delta. ``Client`` adds up what a client of the server sees.
"""

import importlib
import inspect
import json
from collections.abc import Iterable
from typing import Any, NamedTuple, Optional

from .. import Unsupported
from .installed import version
from .signatures import has_parameter

Json = dict[str, Any]
_TOOL_PARSERS = ("vllm.tool_parsers", "vllm.entrypoints.openai.tool_parsers")
_REQUESTS = ("vllm.entrypoints.openai.chat_completion.protocol", "vllm.entrypoints.openai.protocol")
_TOKENIZERS = ("vllm.tokenizers", "vllm.transformers_utils.tokenizer")
_SERVERS = (
    "vllm.entrypoints.openai.chat_completion.serving",
    "vllm.entrypoints.openai.serving_chat",
)
_MESSAGES = (
    "vllm.entrypoints.generate.base.protocol",
    "vllm.entrypoints.openai.engine.protocol",
    "vllm.entrypoints.openai.protocol",
)


class Delta(NamedTuple):
    """What the engine hands to the server at once: text, the ids of its tokens, and whether the
    answer ends with it."""

    text: str
    ids: list[int]
    last: bool = False


_NOTHING = Delta("", [])


class Client:
    """Adds the messages of a stream up as a client does: calls by their index."""

    def __init__(self) -> None:
        self.reasoning, self.content, self.finished = "", "", False
        self.calls: dict[int, list[str]] = {}

    def add(self, message: Any) -> None:
        if message is None:
            return
        self.reasoning += (
            getattr(message, "reasoning", None) or getattr(message, "reasoning_content", None) or ""
        )
        self.content += message.content or ""
        for call in message.tool_calls or ():
            parts = self.calls.setdefault(call.index, ["", ""])
            parts[0] += _part(call.function, "name") or ""
            parts[1] += _part(call.function, "arguments") or ""

    def answer(self) -> Json:
        calls = [(name, arguments) for _, (name, arguments) in sorted(self.calls.items())]
        return answer(self.reasoning, self.content, calls, self.finished)


def answer(
    reasoning: Optional[str], content: Optional[str], calls: list[Any], finished: bool = True
) -> Json:
    """Return an answer as JSON: texts, the name and the arguments of each call, and whether a
    finish reason came."""
    return {
        "reasoning": reasoning or "",
        "content": content or "",
        "calls": [[name or "", arguments or ""] for name, arguments in calls],
        "finished": finished,
    }


def first_module(names: tuple[str, ...]) -> Any:
    """Return the first of these modules that there is and that is the one that defines the names of
    its generation."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise Unsupported("this vLLM has none of {}".format(", ".join(names)), lacks=" or ".join(names))


def tokenizer(path: str) -> Any:
    """Return the tokenizer of a checkpoint as the server loads it."""
    return first_module(_TOKENIZERS).get_tokenizer(path)


def registered() -> dict[str, dict[str, str]]:
    """Return the name of each registered parser with its class, of ``tool`` and ``reasoning``
    parsers. The class is empty if it cannot be loaded."""
    return {kind: _classes(kind) for kind in ("tool", "reasoning")}


def _manager(kind: str) -> Any:
    if kind == "tool":
        return first_module(_TOOL_PARSERS).ToolParserManager
    return first_module(("vllm.reasoning",)).ReasoningParserManager


def parser_class(kind: str, name: Optional[str]) -> Any:
    """Return the tool or reasoning parser of a name; None without a name.

    Raises ``KeyError`` if there is none.
    """
    return getattr(_manager(kind), f"get_{kind}_parser")(name) if name else None


def reads_every_call(name: str) -> bool:
    """Return whether the server gives a tool parser the answers to requests that require a call or
    name a function. Otherwise it takes plain JSON for these."""
    try:
        return not getattr(parser_class("tool", name), "supports_required_and_named", True)
    except (KeyError, ImportError, Unsupported):  # the server says what is wrong with it
        return False


def _classes(kind: str) -> dict[str, str]:
    manager = _manager(kind)
    names = {*getattr(manager, kind + "_parsers", {}), *getattr(manager, "lazy_parsers", {})}
    found = {}
    for name in sorted(names):
        try:
            parser = parser_class(kind, name)
            found[name] = f"{parser.__module__}.{parser.__qualname__}"
        except Exception:  # a package that the parser needs is missing
            found[name] = ""
    return found


def request(tools: list[Json], template_options: Json) -> Any:
    """Return a chat request with these function definitions.

    ``template_options`` may hold ``reasoning_effort``; the rest is for the template.
    """
    options = dict(template_options)
    values: Json = {"model": "m", "messages": [{"role": "user", "content": "?"}], "stream": True}
    if "reasoning_effort" in options:
        values["reasoning_effort"] = options.pop("reasoning_effort")
    if options:
        values["chat_template_kwargs"] = options
    if tools:
        values.update(tools=tools, tool_choice="auto")
    return first_module(_REQUESTS).ChatCompletionRequest(**values)


def parsing(
    tool: Optional[str], reasoning: Optional[str], encoder: Any, prompt: list[int]
) -> "Any":
    """Return an object with ``whole(text, ids, request)`` and ``stream(deltas, request)`` for a
    pair of parsers, of which one may be None.

    Raises ``Unsupported`` if this vLLM has no such parser.
    """
    try:
        composed = importlib.import_module("vllm.parser").ParserManager.get_parser(
            tool_parser_name=tool,
            reasoning_parser_name=reasoning,
            enable_auto_tools=tool is not None,
        )
        if hasattr(composed, "parse_delta"):
            return _Unified(composed, encoder, prompt)
    except (ImportError, AttributeError):
        pass
    except (TypeError, KeyError) as error:
        raise _missing(tool, reasoning, error) from None
    try:
        classes = parser_class("tool", tool), parser_class("reasoning", reasoning)
    except KeyError as error:
        raise _missing(tool, reasoning, error) from None
    return Separate(*classes, encoder, prompt)


def _missing(tool: Optional[str], reasoning: Optional[str], error: Exception) -> Unsupported:
    name = " and ".join(filter(None, (tool, reasoning)))
    return Unsupported(f"this vLLM has no parser {name}: {error}", refused_by=f"vLLM {version()}")


def _template_options(request: Any) -> Json:
    """Return a copy of a request's options for the chat template: some parsers remove what they
    read, and a server has a new request each time."""
    return dict(getattr(request, "chat_template_kwargs", None) or {})


class _Unified:
    """The parser of releases whose server calls ``parse`` and ``parse_delta``."""

    def __init__(self, parser_class: Any, encoder: Any, prompt: list[int]) -> None:
        self._class, self._encoder, self._prompt = parser_class, encoder, prompt
        self._takes_ids = has_parameter(parser_class.parse, "model_output_token_ids")
        self._takes_end = has_parameter(parser_class.parse_delta, "finished")

    def _new(self, request: Any) -> Any:
        template_options = _template_options(request)
        effort = getattr(request, "reasoning_effort", None)
        if effort is not None:
            template_options["reasoning_effort"] = effort
        return self._class(self._encoder, request.tools, chat_template_kwargs=template_options)

    def whole(self, text: str, ids: list[int], request: Any) -> Json:
        parser = self._new(request)
        if hasattr(parser, "set_prompt_token_ids"):
            parser.set_prompt_token_ids(self._prompt)
        options = {"model_output_token_ids": ids} if self._takes_ids else {}
        reasoning, content, calls = parser.parse(text, request, enable_auto_tools=True, **options)
        return answer(reasoning, content, [(call.name, call.arguments) for call in calls or ()])

    def stream(self, deltas: Iterable[Delta], request: Any) -> Json:
        parser, client = self._new(request), Client()
        for delta in deltas:
            end = {"finished": delta.last} if self._takes_end else {}
            client.add(
                parser.parse_delta(
                    delta.text, delta.ids, request, prompt_token_ids=self._prompt, **end
                )
            )
        client.finished = True
        return client.answer()


class Separate:
    """A tool parser and a reasoning parser, called as the older server's
    ``chat_completion_stream_generator`` calls them."""

    def __init__(self, tool: Any, reasoning: Any, encoder: Any, prompt: list[int]) -> None:
        self._tool, self._reasoning, self._encoder, self._prompt = tool, reasoning, encoder, prompt
        server = first_module(_SERVERS).OpenAIServingChat
        # Before 0.9 a last delta that the parser answers with None left the stream without a finish
        # reason.
        self._always_ends = "delta_message = DeltaMessage()" in inspect.getsource(server)

    def _new_tool(self, request: Any) -> Any:
        if self._tool is None:
            return None
        takes_tools = has_parameter(self._tool.__init__, "tools")
        return (
            self._tool(self._encoder, request.tools) if takes_tools else self._tool(self._encoder)
        )

    def _new_reasoning(self, request: Any) -> Any:
        if self._reasoning is None:
            return None
        parameters = inspect.signature(self._reasoning.__init__).parameters.values()
        takes_more = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        options = {"chat_template_kwargs": _template_options(request)} if takes_more else {}
        return self._reasoning(self._encoder, **options)

    def whole(self, text: str, ids: list[int], request: Any) -> Json:
        reasoning: Optional[str] = None
        content: Optional[str] = text
        calls: list[Any] = []
        thinker, tool = self._new_reasoning(request), self._new_tool(request)
        if thinker is not None:
            extract = (
                getattr(thinker, "extract_reasoning", None) or thinker.extract_reasoning_content
            )
            reasoning, content = extract(text, request=request)
        if tool is not None:
            found = tool.extract_tool_calls(content or "", request=request)
            if found is not None and found.tools_called:
                content, calls = found.content, found.tool_calls
        return answer(
            reasoning, content, [(call.function.name, call.function.arguments) for call in calls]
        )

    def stream(self, deltas: Iterable[Delta], request: Any) -> Json:
        tool, client = self._new_tool(request), Client()
        steps = _Steps(tool, self._new_reasoning(request), self._prompt, request)
        for delta in deltas:
            message = steps.message(delta)
            if message is None:
                client.finished = delta.last and self._always_ends
                continue
            if delta.last:
                client.finished = True
                message = _with_rest(tool, message)
            client.add(message)
        return client.answer()


class _Steps:
    """One stream through separate parsers: which of them gets the next delta, and with which texts."""

    def __init__(self, tool: Any, reasoning: Any, prompt: list[int], request: Any) -> None:
        self._tool, self._reasoning, self._prompt, self._request = tool, reasoning, prompt, request
        self._seen = _NOTHING
        self._reasoning_ended, self._calls_begun = False, False
        self._think = reasoning and (
            getattr(reasoning, "extract_reasoning_streaming", None)
            or reasoning.extract_reasoning_content_streaming
        )

    def message(self, delta: Delta) -> Any:
        """Return what the parsers make of the next delta."""
        before, now = self._seen, Delta(self._seen.text + delta.text, self._seen.ids + delta.ids)
        self._seen = now
        if self._tool is None:
            return self._thought(before, now, delta)
        if self._reasoning is None or self._calls_begun:
            return self._called(before, now, delta)
        if self._reasoning_ended:
            self._calls_begun = True
            return self._called(_NOTHING, now, now)
        message = self._thought(before, now, delta)
        in_prompt = self._reasoning.is_reasoning_end(self._prompt)
        if in_prompt or self._reasoning.is_reasoning_end(list(delta.ids)):
            self._reasoning_ended = True
            content = (message.content if message else None) or ""
            self._seen = Delta(
                content,
                delta.ids if in_prompt else self._reasoning.extract_content_ids(list(delta.ids)),
            )
            if content:
                message.content = None
        return message

    def _thought(self, before: Delta, now: Delta, delta: Delta) -> Any:
        return self._think(before.text, now.text, delta.text, before.ids, now.ids, delta.ids)

    def _called(self, before: Delta, now: Delta, delta: Delta) -> Any:
        return self._tool.extract_tool_calls_streaming(
            previous_text=before.text,
            current_text=now.text,
            delta_text=delta.text,
            previous_token_ids=before.ids,
            current_token_ids=now.ids,
            delta_token_ids=delta.ids,
            request=self._request,
        )


def _part(function: Any, name: str) -> Any:
    """Return a part of a call, which releases send as an object or as a dictionary."""
    if isinstance(function, dict):
        return function.get(name)
    return getattr(function, name, None)


def _with_rest(tool: Any, message: Any) -> Any:
    """Return the last message as the server sends it: with arguments, it is replaced by what of the
    last call was not streamed yet."""
    if tool is None or not message.tool_calls:
        return message
    function = message.tool_calls[0].function
    arguments = _part(function, "arguments")
    if arguments is None:
        return message
    remaining = getattr(tool, "get_remaining_unstreamed_args", None)
    if remaining is not None:  # releases that append
        last = message.tool_calls[-1].function
        if last:
            last.arguments = (last.arguments or "") + remaining()
        return message
    index = max(len(tool.prev_tool_call_arr) - 1, 0)
    expected = json.dumps(tool.prev_tool_call_arr[index].get("arguments", {}), ensure_ascii=False)
    actual = tool.streamed_args_for_tool[index]
    if arguments and not isinstance(function, dict):
        actual = actual[: -len(arguments)]
    messages = first_module(_MESSAGES)
    rest = messages.DeltaFunctionCall(arguments=expected.replace(actual, "", 1)).model_dump(
        exclude_none=True
    )
    return messages.DeltaMessage(tool_calls=[messages.DeltaToolCall(index=index, function=rest)])
