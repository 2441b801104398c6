"""Requests as values, and the question that they make together."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ...engines.checkpoints.adapters import Adapter
from ...engines.inputs.script import Script

RANK = 4
"""Rank of the adapters."""


@dataclasses.dataclass(frozen=True)
class Request:
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

    prompt: str = ""
    said: tuple[str, ...] = ()
    ends: bool = True
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    adapter: tuple[str, int] | None = None
    priority: int | None = None
    salt: str = ""
    abort_after: int | None = None

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
        return dataclasses.replace(
            self, options={name: value for name, value in self.options.items() if name not in names}
        )

    def with_options(self, **options: Any) -> Request:
        """Return the request with these options changed."""
        return dataclasses.replace(self, options={**self.options, **options})

    def to_json(self) -> dict[str, Any]:
        """Return the request as JSON, without what is usual."""
        document = dataclasses.asdict(self)
        return {name: value for name, value in document.items() if value != getattr(_USUAL, name)}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Request:
        """Return the request that ``to_json`` was called on."""
        values = dict(document)
        if values.get("adapter"):
            name, seed = values["adapter"]
            values["adapter"] = (str(name), int(seed))
        return cls(**{**values, "said": tuple(values.get("said", ()))})


_USUAL = Request()


@dataclasses.dataclass(frozen=True)
class Question:
    """Requests in turns: those of a turn are sent together, a turn after the answers to the one
    before."""

    turns: tuple[tuple[Request, ...], ...]

    @property
    def requests(self) -> tuple[Request, ...]:
        return tuple(request for turn in self.turns for request in turn)

    @property
    def traits(self) -> frozenset[str]:
        return frozenset().union(*(request.traits for request in self.requests))

    def with_request(self, number: int, request: Request | None) -> Question:
        """Return the question with another request instead of this one, or without it."""
        turns, at = [], 0
        for turn in self.turns:
            changed = []
            for old in turn:
                new = request if at == number else old
                changed += [new] if new is not None else []
                at += 1
            turns += [tuple(changed)] if changed else []
        return Question(tuple(turns))

    def to_json(self) -> list[list[dict[str, Any]]]:
        return [[request.to_json() for request in turn] for turn in self.turns]

    def to_text(self) -> str:
        return json.dumps(self.to_json())

    @classmethod
    def of_json(cls, document: list[list[dict[str, Any]]]) -> Question:
        """Return the question that ``to_json`` was called on."""
        return cls(tuple(tuple(map(Request.of_json, turn)) for turn in document))


def is_broken(text: str) -> bool:
    """Return whether a text is not valid UTF-8."""
    return any("\udc80" <= letter <= "\udcff" for letter in text)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _script(text: str, ends: bool) -> Script:
    return Script.raw(_bytes(text), end=ends) if is_broken(text) else Script.text(text, end=ends)


def describe(question: Question) -> Iterator[str]:
    """Yield a line for each request."""
    for number, turn in enumerate(question.turns):
        for request in turn:
            where = f"turn {number + 1}: " if len(question.turns) > 1 else ""
            yield where + json.dumps(request.to_json())
