"""What a model means to answer, as the search draws it: reasoning, text and calls.

A parser may read several formats. Whether a release's parser reads a format is asked with a plain
call first (``PLAIN``): one that it does not understand at all is not covered in that release, which
is no finding.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from hypothesis import strategies as st

from ...engines.inputs.formats import FunctionCall, Meaning
from ...schemas.values import values_matching
from ..drawing import drawn_data

_DATA = drawn_data("parser_texts")
TOOLS: list[Mapping[str, Any]] = _DATA["tools"]
"""The functions that drawn calls name. ``now`` has no parameters; an argument of one name has one
type."""
BASIC = frozenset(_DATA["basic"])
"""Features by which findings are not told apart, if they have others."""
STYLES: tuple[Literal["spaced", "compact", "escaped"], ...] = ("spaced", "compact", "escaped")


def features(meaning: Meaning) -> frozenset[str]:
    """Return what an answer contains, in the words by which findings are told apart."""
    return frozenset(_features(meaning))


def _features(meaning: Meaning) -> Iterator[str]:
    if meaning.reasoning:
        yield from ("reasoning", *_of_text(meaning.reasoning, "reasoning "))
    if meaning.content:
        yield from ("content", *_of_text(meaning.content, "content "))
    if meaning.calls:
        yield "a call"
    if len(meaning.calls) > 1:
        yield "several calls"
    for call in meaning.calls:
        if not call.arguments:
            yield "no arguments"
        if len(call.arguments) > 1:
            yield "several arguments"
        for value in call.arguments.values():
            yield from _of_value(value)
    if meaning.style != "spaced":
        yield f"{meaning.style} JSON"


def _of_value(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from ("string", *_of_text(value))
    elif isinstance(value, bool):
        yield "boolean"
    elif isinstance(value, int | float):
        yield "integer" if isinstance(value, int) else "number"
        if value < 0:
            yield "negative number"
        if "e" in repr(value):
            yield "exponent"
    elif value is None:
        yield "null"
    else:
        kind = "object" if isinstance(value, dict) else "list"
        yield kind if value else f"empty {kind}"
        for member in value.values() if isinstance(value, dict) else value:
            if isinstance(member, list | dict):
                yield "nesting"
            yield from _of_value(member)


def _of_text(text: str, prefix: str = "") -> Iterator[str]:
    if not text:
        yield f"{prefix}empty string"
    if not text.isascii():
        yield f"{prefix}beyond ASCII"
    if text.strip() != text and text.strip():
        yield f"{prefix}outer space"
    for sign, name in _DATA["signs"].items():
        if sign in text:
            yield prefix + name
    if _reads_as_json(text):
        yield f"{prefix}string that reads as another type"


def _reads_as_json(text: str) -> bool:
    if text.lower() in ("true", "false", "null", "none"):
        return True
    try:
        return not isinstance(json.loads(text), str)
    except ValueError:
        return False


@functools.cache
@st.composite
def meanings(draw: st.DrawFn) -> Meaning:
    """Draw an answer: reasoning, text, and up to three calls."""
    calls = []
    for name in draw(st.lists(st.sampled_from(("get_weather", "add", "now")), max_size=3)):
        calls.append(
            FunctionCall(name, {} if name == "now" else draw(values_matching(_DATA["arguments"])))
        )
    thought = draw(st.sampled_from(_DATA["thoughts"]))
    content = draw(st.sampled_from(_DATA["before_calls" if calls else "alone"]))
    return Meaning(thought, content, tuple(calls), draw(st.sampled_from(STYLES)))


PLAIN: Mapping[str, Meaning] = {
    "tool": Meaning("I think.", "", (FunctionCall("get_weather", {"city": "Paris"}),)),
    "reasoning": Meaning("I think.", "Hello."),
}
"""What every parser of a kind must understand, as a whole, in a format that it reads."""
