"""Chat completions of vLLM's server: their types, which are those of OpenAI's API with vLLM's
additions, and their answers in one form for all versions, whether they were streamed or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

Messages = Sequence[Mapping[str, Any]]
"""A conversation in the format of OpenAI's API."""
_REASONING = (
    "reasoning",
    "reasoning_content",
)  # the name in later versions, and in earlier ones; some send both


class ChatMessage(TypedDict):
    """The model's message. ``content`` is None if it called tools instead."""

    role: str
    content: str | None
    tool_calls: NotRequired[list[dict[str, Any]]]
    reasoning_content: NotRequired[str | None]


class ChatChoice(TypedDict):
    """One of the ``n`` choices."""

    index: int
    message: ChatMessage
    finish_reason: str | None
    stop_reason: NotRequired[int | str | None]
    logprobs: NotRequired[Any]


class ChatCompletion(TypedDict):
    """A chat completion in the format of OpenAI's API. ``usage`` counts tokens by kind."""

    id: str
    model: str
    created: int
    choices: list[ChatChoice]
    usage: Any


class ChatDelta(TypedDict, total=False):
    """The part of a message in one chunk."""

    role: str
    content: str | None
    tool_calls: list[dict[str, Any]]
    reasoning_content: str | None


class ChatChunkChoice(TypedDict):
    """The part of one of the ``n`` choices in one chunk."""

    index: int
    delta: ChatDelta
    finish_reason: NotRequired[str | None]
    stop_reason: NotRequired[int | str | None]
    logprobs: NotRequired[Any]


class ChatChunk(TypedDict):
    """One chunk of a streamed chat completion.

    The last one may have no choices, but the ``usage``.
    """

    id: str
    model: str
    created: int
    choices: list[ChatChunkChoice]
    usage: NotRequired[Any]


@dataclass(frozen=True)
class ToolCall:
    """A function call found by a parser. ``arguments`` is the JSON text of the model.

    Ids are chosen by the server and not compared.
    """

    name: str
    arguments: str
    id: str = field(default="", compare=False)


@dataclass(frozen=True)
class Message:
    """The message of one choice.

    A missing text is empty, because versions differ in whether they send empty texts.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None


def whole(answer: Mapping[str, Any]) -> tuple[Message, ...]:
    """Return the choices of a chat completion, in order."""
    return tuple(
        _message(choice["message"], choice["finish_reason"])
        for choice in sorted(answer["choices"], key=lambda choice: int(choice["index"]))
    )


def joined(chunks: Iterable[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Return the choices of a streamed chat completion, joined as a client does: deltas by choice,
    calls by their index."""
    parts: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            part = parts.setdefault(
                choice["index"], {"content": "", "reasoning": "", "calls": {}, "end": None}
            )
            delta = choice["delta"]
            part["content"] += delta.get("content") or ""
            part["reasoning"] += _reasoning(delta)
            part["end"] = choice.get("finish_reason") or part["end"]
            for call in delta.get("tool_calls") or ():
                joined_call = part["calls"].setdefault(
                    call["index"], {"id": "", "name": "", "arguments": ""}
                )
                function = call.get("function") or {}
                joined_call["id"] = joined_call["id"] or call.get("id") or ""
                joined_call["name"] += function.get("name") or ""
                joined_call["arguments"] += function.get("arguments") or ""
    return tuple(
        Message(
            part["content"],
            part["reasoning"],
            tuple(ToolCall(**part["calls"][number]) for number in sorted(part["calls"])),
            part["end"],
        )
        for _, part in sorted(parts.items())
    )


def _message(message: Mapping[str, Any], end: str | None) -> Message:
    calls = tuple(
        ToolCall(call["function"]["name"], call["function"]["arguments"], call.get("id") or "")
        for call in message.get("tool_calls") or ()
    )
    return Message(message.get("content") or "", _reasoning(message), calls, end)


def _reasoning(part: Mapping[str, Any]) -> str:
    return next((str(part[name]) for name in _REASONING if part.get(name)), "")
