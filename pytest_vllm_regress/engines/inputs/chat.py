"""Types of chat completions from vLLM's server: those of OpenAI's API with vLLM's additions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

Messages = Sequence[Mapping[str, Any]]
"""A conversation in the format of OpenAI's API."""


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
