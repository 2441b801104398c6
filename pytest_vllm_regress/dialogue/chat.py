"""Chat completions as vLLM's server answers them: OpenAI's, with what vLLM adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

Messages = Sequence[Mapping[str, Any]]
"""A conversation as OpenAI's API has it."""


class ChatMessage(TypedDict):
    """What the model said. ``content`` is None where it called tools instead."""

    role: str
    content: str | None
    tool_calls: NotRequired[list[dict[str, Any]]]
    reasoning_content: NotRequired[str | None]


class ChatChoice(TypedDict):
    """One of the ``n`` answers."""

    index: int
    message: ChatMessage
    finish_reason: str | None
    stop_reason: NotRequired[int | str | None]
    logprobs: NotRequired[Any]


class ChatCompletion(TypedDict):
    """A chat completion as OpenAI's API has it; ``usage`` counts tokens by kind."""

    id: str
    model: str
    created: int
    choices: list[ChatChoice]
    usage: Any


class ChatDelta(TypedDict, total=False):
    """What a chunk adds to a message."""

    role: str
    content: str | None
    tool_calls: list[dict[str, Any]]
    reasoning_content: str | None


class ChatChunkChoice(TypedDict):
    """What a chunk adds to one of the ``n`` answers."""

    index: int
    delta: ChatDelta
    finish_reason: NotRequired[str | None]
    stop_reason: NotRequired[int | str | None]
    logprobs: NotRequired[Any]


class ChatChunk(TypedDict):
    """One chunk of a streamed chat completion; the last may have no choices and tell the ``usage``."""

    id: str
    model: str
    created: int
    choices: list[ChatChunkChoice]
    usage: NotRequired[Any]
