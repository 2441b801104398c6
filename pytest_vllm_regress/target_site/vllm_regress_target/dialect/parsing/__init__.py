"""How the server of the installed vLLM parses a model's answer, whole and in deltas, without an
engine.

Releases with ``Parser.parse_delta`` are asked through it, as their server does. Before it, the
server called the tool parser and the reasoning parser itself; ``Separate`` repeats that, with what
the server does to the last delta.
"""

import importlib
import inspect
from typing import Any, Dict, Iterable, List, Optional

from ... import Unsupported
from ..installed import version
from .client import Client, Delta, Json, answer, first_module
from .separate import Separate

_TOOL_PARSERS = ("vllm.tool_parsers", "vllm.entrypoints.openai.tool_parsers")
_REQUESTS = ("vllm.entrypoints.openai.chat_completion.protocol", "vllm.entrypoints.openai.protocol")
_TOKENIZERS = ("vllm.tokenizers", "vllm.transformers_utils.tokenizer")


def tokenizer(path: str) -> Any:
    """Return the tokenizer of a checkpoint as the server loads it."""
    return first_module(_TOKENIZERS).get_tokenizer(path)


def registered() -> Dict[str, Dict[str, str]]:
    """Return the name of each registered parser with its class, of ``tool`` and ``reasoning``
    parsers. The class is empty if it cannot be loaded."""
    managers = {
        "tool": first_module(_TOOL_PARSERS).ToolParserManager,
        "reasoning": first_module(("vllm.reasoning",)).ReasoningParserManager,
    }
    return {kind: _classes(kind, manager) for kind, manager in managers.items()}


def _classes(kind: str, manager: Any) -> Dict[str, str]:
    names = {*getattr(manager, kind + "_parsers", {}), *getattr(manager, "lazy_parsers", {})}
    found = {}
    for name in sorted(names):
        try:
            parser = getattr(manager, "get_{}_parser".format(kind))(name)
            found[name] = "{}.{}".format(parser.__module__, parser.__qualname__)
        except Exception:  # a package that the parser needs is missing
            found[name] = ""
    return found


def request(tools: List[Json], template_options: Json) -> Any:
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
    tool: Optional[str], reasoning: Optional[str], encoder: Any, prompt: List[int]
) -> "Any":
    """Return an object with ``whole(text, ids, request)`` and ``stream(deltas, request)`` for a
    pair of parsers, of which one may be None.

    Raises ``Unsupported`` if this vLLM has no such parser.
    """
    try:
        parser_class = importlib.import_module("vllm.parser").ParserManager
        composed = parser_class.get_parser(
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
        tool_class = (
            first_module(_TOOL_PARSERS).ToolParserManager.get_tool_parser(tool) if tool else None
        )
        reasoning_class = (
            first_module(("vllm.reasoning",)).ReasoningParserManager.get_reasoning_parser(reasoning)
            if reasoning
            else None
        )
    except KeyError as error:
        raise _missing(tool, reasoning, error) from None
    return Separate(tool_class, reasoning_class, encoder, prompt)


def _missing(tool: Optional[str], reasoning: Optional[str], error: Exception) -> Unsupported:
    name = " and ".join(filter(None, (tool, reasoning)))
    return Unsupported(
        "this vLLM has no parser {}: {}".format(name, error), refused_by="vLLM {}".format(version())
    )


class _Unified:
    """The parser of releases whose server calls ``parse`` and ``parse_delta``."""

    def __init__(self, parser_class: Any, encoder: Any, prompt: List[int]) -> None:
        self._class, self._encoder, self._prompt = parser_class, encoder, prompt
        self._whole_options = inspect.signature(parser_class.parse).parameters
        self._takes_end = "finished" in inspect.signature(parser_class.parse_delta).parameters

    def _new(self, request: Any) -> Any:
        template_options = dict(getattr(request, "chat_template_kwargs", None) or {})
        effort = getattr(request, "reasoning_effort", None)
        if effort is not None:
            template_options["reasoning_effort"] = effort
        return self._class(self._encoder, request.tools, chat_template_kwargs=template_options)

    def whole(self, text: str, ids: List[int], request: Any) -> Json:
        parser = self._new(request)
        if hasattr(parser, "set_prompt_token_ids"):
            parser.set_prompt_token_ids(self._prompt)
        options = (
            {"model_output_token_ids": ids}
            if "model_output_token_ids" in self._whole_options
            else {}
        )
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
