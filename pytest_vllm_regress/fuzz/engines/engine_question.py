"""Requests as values, and the question that they make together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from ...engines.checkpoints.adapters import Adapter
from ...engines.inputs.script import Script
from ...util.codec import Document, Meta, replace

RANK = 4
"""Rank of the adapters."""
EVERYWHERE = frozenset({"max_tokens", "temperature"})
"""Options of every request."""
Text = Annotated[str, Meta(max_length=20000)]


class Request(Document, frozen=True):
    """A request for text.

    Attributes:
        prompt: text. Lone surrogates (``surrogateescape``) stand for bytes that are not valid
            UTF-8; such a prompt is sent as token ids.
        said: what the simulated model says, one text for each choice, in the same encoding; empty
            if it draws its answer.
        ends: the model ends its answer after ``said``, else it repeats it.
        options: vLLM's SamplingParams by name.
        adapter: name and seed of a LoRA adapter.
        priority: None without one.
        salt: the request's ``cache_salt``.
        abort_after: the request is aborted after this many results, where results are streamed.
    """

    prompt: Text = ""
    said: Annotated[tuple[Text, ...], Meta(max_length=20)] = ()
    ends: bool = True
    options: Annotated[Mapping[str, Any], Meta(max_length=40)] = {}
    # The name becomes a folder.
    adapter: tuple[Annotated[str, Meta(pattern="^[a-z]{1,100}$")], int] | None = None
    priority: int | None = None
    salt: Annotated[str, Meta(max_length=100)] = ""
    abort_after: Annotated[int, Meta(ge=1, le=1000)] | None = None

    @property
    def traits(self) -> frozenset[str]:
        """What findings are told apart by: the options, and what else is unusual about the request."""
        unusual = {
            "adapter": self.adapter is not None,
            "priority": self.priority is not None,
            "cache_salt": bool(self.salt),
            "abort": self.abort_after is not None,
            "script": bool(self.said),
            "token ids": self.is_broken,
        }
        return frozenset({*self.options, *(name for name, holds in unusual.items() if holds)})

    @property
    def is_broken(self) -> bool:
        """Whether the prompt is not valid UTF-8."""
        return is_broken(self.prompt)

    @property
    def tokens(self) -> list[int] | None:
        """The prompt as token ids, for one that is not valid UTF-8.

        Its bytes are the tokens of the forged tokenizer.
        """
        return list(_bytes(self.prompt)) if self.is_broken else None

    @property
    def text(self) -> str:
        """The prompt as text, with its script."""
        if not self.said:
            return self.prompt
        first, *further = (_script(text, self.ends) for text in self.said)
        return first.prompt(self.prompt, *further)

    @property
    def lora(self) -> Adapter | None:
        """The adapter, forged."""
        return Adapter(self.adapter[0], rank=RANK, seed=self.adapter[1]) if self.adapter else None

    def without(self, *names: str) -> Request:
        """Return the request without these options."""
        options = {name: value for name, value in self.options.items() if name not in names}
        return replace(self, options=options)


Turn = Annotated[tuple[Request, ...], Meta(min_length=1, max_length=20)]


class Turns(Document, frozen=True):
    """A question: requests in turns. Those of a turn are sent together, a turn after the answers to
    the one before."""

    turns: Annotated[tuple[Turn, ...], Meta(min_length=1, max_length=10)]

    @property
    def requests(self) -> tuple[Request, ...]:
        return tuple(request for turn in self.turns for request in turn)

    @property
    def traits(self) -> frozenset[str]:
        return frozenset().union(*(request.traits for request in self.requests))


def is_broken(text: str) -> bool:
    """Return whether a text is not valid UTF-8."""
    return any("\udc80" <= letter <= "\udcff" for letter in text)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _script(text: str, ends: bool) -> Script:
    return Script.raw(_bytes(text), end=ends) if is_broken(text) else Script.text(text, end=ends)
