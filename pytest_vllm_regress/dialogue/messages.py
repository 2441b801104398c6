"""Chat answers as one value, whatever a version calls their parts and whether they came whole or in pieces."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

_REASONING = ("reasoning", "reasoning_content")  # later versions, earlier ones; some send both


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A function call that a parser found; ``arguments`` is JSON text, as the model wrote it. Ids are the server's and do not compare."""

    name: str
    arguments: str
    id: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True)
class Message:
    """The answer of one choice. Empty texts and absent ones are the same: versions differ in that."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None


def whole(answer: Mapping[str, Any]) -> tuple[Message, ...]:
    """The choices of a chat completion, in order."""
    return tuple(
        _message(choice["message"], choice["finish_reason"])
        for choice in sorted(answer["choices"], key=lambda choice: int(choice["index"]))
    )


def joined(chunks: Iterable[Mapping[str, Any]]) -> tuple[Message, ...]:
    """The choices of a streamed chat completion, put together as a client does it: deltas by choice, calls by their index."""
    parts: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            part = parts.setdefault(choice["index"], {"content": "", "reasoning": "", "calls": {}, "end": None})
            delta = choice["delta"]
            part["content"] += delta.get("content") or ""
            part["reasoning"] += _reasoning(delta)
            part["end"] = choice.get("finish_reason") or part["end"]
            for call in delta.get("tool_calls") or ():
                known = part["calls"].setdefault(call["index"], {"id": "", "name": "", "arguments": ""})
                function = call.get("function") or {}
                known["id"] = known["id"] or call.get("id") or ""
                known["name"] += function.get("name") or ""
                known["arguments"] += function.get("arguments") or ""
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
