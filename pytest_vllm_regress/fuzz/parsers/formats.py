"""Formats: how a model writes calls and reasoning. ``catalogue`` says which parser reads which.

A parser may read several formats. Whether a release's parser reads a format is asked with a plain
call first (``PLAIN``): one that it does not understand at all is not covered in that release, which
is no finding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from .meaning import Call, Meaning
from .writers import Limit, Writer, Written, anything


@dataclasses.dataclass(frozen=True)
class Format:
    """How a model writes calls, reasoning, or both.

    Attributes:
        tokens: markers that are single tokens of the model's tokenizer.
        call: writes one call; None if the format has none.
        before, between, after: texts around all calls.
        limit: whether the format can write an argument.
        content: whether text may precede the calls.
        plain: whether text without calls is written as it is. If not, only calls are asked.
        several: whether there may be more than one call.
        thinking: texts around reasoning; empty if the format has none.
        prompt: what the chat template writes last, behind the header of the answer.
        options: of the chat template, without which the parser expects another format.
    """

    tokens: tuple[str, ...] = ()
    call: Writer | None = None
    before: str = ""
    between: str = ""
    after: str = ""
    limit: Limit = anything
    content: bool = True
    plain: bool = True
    several: bool = True
    thinking: tuple[str, str] | None = None
    prompt: str = ""
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def fitted(self, meaning: Meaning) -> Meaning:
        """Return the part of an answer that this format can write."""
        calls = () if self.call is None else meaning.calls if self.several else meaning.calls[:1]
        calls = tuple(
            Call(
                call.name,
                {key: value for key, value in call.arguments.items() if self.limit(value)},
            )
            for call in calls
        )
        content = meaning.content if (self.content if calls else self.plain) else ""
        reasoning = meaning.reasoning if self.thinking else ""
        return dataclasses.replace(meaning, reasoning=reasoning, content=content, calls=calls)

    def text(self, meaning: Meaning) -> str:
        """Return an answer as the model writes it."""
        parts = (
            [f"{self.thinking[0]}{meaning.reasoning}{self.thinking[1]}"] if self.thinking else []
        )
        parts.append(meaning.content)
        if meaning.calls and self.call is not None:
            written = (
                self.call(Written(call, index, meaning.style))
                for index, call in enumerate(meaning.calls)
            )
            parts += [self.before, self.between.join(written), self.after]
        return "".join(parts)


PLAIN = Meaning("I think.", "", (Call("get_weather", {"city": "Paris"}),))
PLAIN_ANSWER = Meaning("I think.", "Hello.")
"""What every parser must understand, as a whole, in a format that it reads."""

THINK = ("<think>", "</think>")
"""The markers of reasoning that most models write."""
PLAMO = tuple(
    f"<|plamo:{word}|>"
    for word in (
        *(
            f"{end}_{part}:plamo"
            for part in ("tool_requests", "tool_request", "tool_name", "tool_arguments", "think")
            for end in ("begin", "end")
        ),
        "constrain",
        "msg:plamo",
        "tag",
    )
)
"""The markers of PLaMo 3, which its tool parser and its reasoning parser need alike."""
