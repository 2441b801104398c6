"""A client's request as scripts see it: the conversation in it, in the format of any API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

ToolChoice = Literal["auto", "required", "named"]
"""Whether the model may call a tool, must call one, or must call the one that is named."""
_GENERATING = ("/completions", "/responses", "/messages", "/transcriptions", "/translations")
_HISTORY = ("messages", "input", "prompt")
"""Where the conversation stands: chat and Anthropic's API, the Responses API, completions."""
_SCHEMAS = (
    "response_format.json_schema.schema",
    "structured_outputs.json",
    "guided_json",
    "text.format.schema",
    "output_config.format.schema",
)
"""Where a request has the schema of its answer: chat and completions, vLLM's own fields, the
Responses API, Anthropic's API."""
_OF_THE_MODEL = ("function_call", "reasoning")
_TEXTS = ("text", "content", "output")


@dataclass(frozen=True)
class ClientRequest:
    """A request that a client has sent to a server.

    ``path`` without the query; ``body``: the JSON object that was sent, empty for another body.
    """

    path: str
    body: Mapping[str, Any] = field(default_factory=dict)
    method: str = "POST"

    @property
    def generates(self) -> bool:
        """Whether the model answers it."""
        return self.method == "POST" and self.path.endswith(_GENERATING)

    @property
    def text(self) -> str:
        """The last message of the user or of a tool."""
        said = [item for item in self._items() if not _is_of_model(item)]
        return _text(said[-1]) if said else ""

    @property
    def conversation(self) -> str:
        """All messages before the answer, one per line."""
        return "\n".join(map(_text, self._items()))

    @property
    def turn(self) -> int:
        """How often the model has answered in the conversation so far, 0 for the first request.

        What it said in one answer, such as a text and a call, counts once. Answers that the server
        was told to store are not in the request and not counted.
        """
        return sum(1 for of_model, _ in groupby(self._items(), _is_of_model) if of_model)

    @property
    def tool_choice(self) -> ToolChoice:
        """What the request says about calling tools."""
        choice = self.body.get("tool_choice")
        if isinstance(choice, Mapping):
            kind = choice.get("type")
            return "named" if kind in ("function", "tool", "custom") else _general(kind)
        return _general(choice)

    @property
    def schema(self) -> Any:
        """The JSON schema that the answer must follow; empty if the request has none."""
        places = (_at(self.body, *path.split(".")) for path in _SCHEMAS)
        return next((place for place in places if isinstance(place, Mapping)), {})

    def parameters(self, function: str) -> Any:
        """Return the JSON schema of a function's arguments; empty if the request does not have it."""
        tools = self.body.get("tools")
        for tool in tools if isinstance(tools, Sequence) else ():
            about = _at(tool, "function") or tool  # the Responses API has no level "function"
            if _at(about, "name") == function:
                return _at(about, "parameters") or _at(about, "input_schema") or {}
        return {}

    def _items(self) -> Iterator[Any]:
        history = next((self.body[key] for key in _HISTORY if key in self.body), ())
        yield from [history] if isinstance(history, str) else history or ()


def in_order(value: Any, schema: Any, root: Any = None) -> Any:
    """Return a JSON value with its keys in the order in which a schema lists its properties, in
    which grammars want them."""
    root = schema if root is None else root
    reference = _at(schema, "$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        schema = _at(root, *reference[2:].split("/"))
    if isinstance(value, Mapping):
        properties = _at(schema, "properties") or {}
        names = [*(name for name in properties if name in value), *value]
        return {name: in_order(value[name], properties.get(name), root) for name in names}
    if isinstance(value, list):
        return [in_order(item, _at(schema, "items"), root) for item in value]
    return value


def _at(document: Any, *names: str) -> Any:
    """Return what stands in nested objects below these names; None if there is no such place."""
    for name in names:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def _general(choice: object) -> ToolChoice:
    return "required" if choice in ("required", "any") else "auto"


def _is_of_model(item: object) -> bool:
    return isinstance(item, Mapping) and (
        item.get("role") == "assistant" or item.get("type") in _OF_THE_MODEL
    )


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return next((_text(value[key]) for key in _TEXTS if key in value), "")
    if isinstance(value, Sequence):
        return "".join(map(_text, value))
    return ""
