"""What a model means to answer: reasoning, text and calls, independent of any parser's format, and
the strategies that draw it."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from hypothesis import strategies as st

from ...util.codec import Document, Meta
from ..drawing import drawn_data

_DATA = drawn_data("parser_texts")
TOOLS: list[Mapping[str, Any]] = _DATA["tools"]
"""The functions that drawn calls name. ``now`` has no parameters; an argument of one name has one
type."""
STYLES: tuple[Literal["spaced", "compact", "escaped"], ...] = ("spaced", "compact", "escaped")


class FunctionCall(Document, frozen=True, omit_defaults=False):
    """A call of a function."""

    name: Annotated[str, Meta(max_length=100)]
    arguments: Mapping[str, Any]


class Meaning(Document, frozen=True, omit_defaults=False):
    """An answer. ``style``: how its JSON is written, with spaces, without, or with escapes instead
    of letters beyond ASCII."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[FunctionCall, ...] = ()
    style: Literal["spaced", "compact", "escaped"] = "spaced"

    def as_json(self, value: Any) -> str:
        """Return a value as JSON in the style of the answer."""
        separators = (",", ":") if self.style == "compact" else None
        return json.dumps(value, ensure_ascii=self.style == "escaped", separators=separators)


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


_SIGNS = {
    '"': "quote",
    "'": "apostrophe",
    "\\": "backslash",
    "\n": "newline",
    "<": "tag",
    "{": "brace",
    "[": "bracket",
}


def _of_text(text: str, prefix: str = "") -> Iterator[str]:
    if not text:
        yield f"{prefix}empty string"
    if not text.isascii():
        yield f"{prefix}beyond ASCII"
    if text.strip() != text and text.strip():
        yield f"{prefix}outer space"
    for sign, name in _SIGNS.items():
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


def _strings() -> st.SearchStrategy[str]:
    parts = st.one_of(st.sampled_from(_DATA["words"]), st.sampled_from(_DATA["odd"]))
    return st.one_of(
        st.sampled_from(_DATA["words"]), parts, st.lists(parts, min_size=1, max_size=3).map("".join)
    )


_INTEGERS = st.one_of(st.integers(-1000, 1000), st.sampled_from((0, 1, 10, 100, 10**12)))
_NUMBERS = st.one_of(
    st.integers(-400, 400).map(lambda n: n / 8), st.sampled_from((0.1, -0.5, 1e-7, 1e21, 3.0))
)


def _members() -> st.SearchStrategy[Any]:
    scalars = st.one_of(_strings(), _INTEGERS, _NUMBERS, st.booleans(), st.none())
    keys = st.sampled_from(("a", "b", "key"))
    return st.recursive(
        scalars,
        lambda inner: st.one_of(
            st.lists(inner, max_size=2), st.dictionaries(keys, inner, max_size=2)
        ),
        max_leaves=3,
    )


def _arguments() -> st.SearchStrategy[dict[str, Any]]:
    keys = st.sampled_from(("a", "b", "key"))
    return st.fixed_dictionaries(
        {},
        optional={
            "city": _strings(),
            "text": _strings(),
            "count": _INTEGERS,
            "ratio": _NUMBERS,
            "flag": st.booleans(),
            "items": st.lists(_members(), max_size=3),
            "options": st.dictionaries(keys, _members(), max_size=2),
        },
    )


@functools.cache
@st.composite
def meanings(draw: st.DrawFn) -> Meaning:
    """Draw an answer: reasoning, text, and up to three calls."""
    calls = []
    for name in draw(st.lists(st.sampled_from(("get_weather", "add", "now")), max_size=3)):
        calls.append(FunctionCall(name, {} if name == "now" else draw(_arguments())))
    thought = draw(st.sampled_from(_DATA["thoughts"]))
    content = draw(st.sampled_from(_DATA["before_calls" if calls else "alone"]))
    return Meaning(thought, content, tuple(calls), draw(st.sampled_from(STYLES)))
