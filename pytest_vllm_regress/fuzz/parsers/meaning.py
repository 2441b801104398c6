"""What a model means to answer: reasoning, text and calls; how they are drawn, and how models write
them. ``data/fuzz/formats.toml`` says which parser reads which format.

A parser may read several formats. Whether a release's parser reads a format is asked with a plain
call first (``PLAIN``): one that it does not understand at all is not covered in that release, which
is no finding.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from string import Template
from typing import Annotated, Any, Literal

from hypothesis import strategies as st

from ...schemas.values import values_matching
from ...util.codec import Document, Meta, load, replace
from ...util.paths import DATA
from ..drawing import drawn_data

_DATA = drawn_data("parser_texts")
TOOLS: list[Mapping[str, Any]] = _DATA["tools"]
"""The functions that drawn calls name. ``now`` has no parameters; an argument of one name has one
type."""
BASIC = frozenset(_DATA["basic"])
"""Features by which findings are not told apart, if they have others."""
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


_KINDS = {str: "string", int: "number", float: "number", bool: "boolean", list: "array"}


class Format(Document, frozen=True):
    """How a model writes calls, reasoning, or both.

    Attributes:
        tokens: markers that are single tokens of the model's tokenizer.
        call: pattern of a call, with $name, $index (from 0), $number (from 1), and $arguments;
            $call is ``{"name": ..., key: {...}}`` as JSON, $keyed ``{name: {...}}``. Empty if the
            format has no calls.
        argument: pattern of each argument, with $key, $kind of the value, and $value (strings as
            they are, everything else as JSON), $literal (as in Python) or $gemma; without it,
            $arguments is JSON. ``joint`` stands between arguments.
        whole: $kind of whole numbers.
        before, between, after: texts around all calls.
        limit: which arguments the format can write (``_LIMITS``).
        content: whether text may precede the calls.
        plain: whether text without calls is written as it is. If not, only calls are asked.
        several: whether there may be more than one call.
        thinking: texts around reasoning; empty if the format has none.
        prompt: what the chat template writes last, behind the header of the answer.
        options: of the chat template, without which the parser expects another format.
    """

    tokens: tuple[str, ...] = ()
    call: str = ""
    key: str = "arguments"
    argument: str = ""
    joint: str = ""
    whole: str = "number"
    before: str = ""
    between: str = ""
    after: str = ""
    limit: Literal["", "plain_text", "between_signs", "plain_xml", "scalars"] = ""
    content: bool = True
    plain: bool = True
    several: bool = True
    thinking: tuple[str, str] | None = None
    prompt: str = ""
    options: Mapping[str, Any] = {}

    def fitted(self, meaning: Meaning) -> Meaning:
        """Return the part of an answer that this format can write."""
        can_write = _LIMITS[self.limit]
        calls = meaning.calls[: len(meaning.calls) if self.several else 1] if self.call else ()
        calls = tuple(
            FunctionCall(
                call.name, {key: value for key, value in call.arguments.items() if can_write(value)}
            )
            for call in calls
        )
        content = meaning.content if (self.content if calls else self.plain) else ""
        reasoning = meaning.reasoning if self.thinking else ""
        return replace(meaning, reasoning=reasoning, content=content, calls=calls)

    def text(self, meaning: Meaning) -> str:
        """Return an answer as the model writes it."""
        begin, end = self.thinking or ("", "")
        text = f"{begin}{meaning.reasoning if self.thinking else ''}{end}{meaning.content}"
        if not (meaning.calls and self.call):
            return text
        written = (self._call(call, at, meaning) for at, call in enumerate(meaning.calls))
        return f"{text}{self.before}{self.between.join(written)}{self.after}"

    def _call(self, call: FunctionCall, index: int, meaning: Meaning) -> str:
        arguments = dict(call.arguments)
        written = (self._argument(key, value, meaning) for key, value in arguments.items())
        return Template(self.call).substitute(
            name=call.name,
            index=index,
            number=index + 1,
            arguments=self.joint.join(written) if self.argument else meaning.as_json(arguments),
            call=meaning.as_json({"name": call.name, self.key: arguments}),
            keyed=meaning.as_json({call.name: arguments}),
        )

    def _argument(self, key: str, value: Any, meaning: Meaning) -> str:
        kind = self.whole if type(value) is int else _KINDS.get(type(value), "object")
        return Template(self.argument).substitute(
            key=key,
            kind=kind,
            is_string=meaning.as_json(kind == "string"),
            value=value if isinstance(value, str) else meaning.as_json(value),
            literal=repr(value),
            gemma=_gemma(value),
        )


def _gemma(value: Any) -> str:
    """Return a value as Gemma 4 writes it: ``<|"|>`` around strings, none around keys."""
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, list):
        return f"[{','.join(map(_gemma, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_gemma(member)}' for key, member in value.items())}}}"
    return json.dumps(value)


def _is_plain(value: Any) -> bool:
    """Tags enclose strings without escapes: outer space and what looks like a closing tag cannot be
    told from the format."""
    return not isinstance(value, str) or (value == value.strip() and "<" not in value)


_LIMITS: Mapping[str, Callable[[Any], bool]] = {
    "": lambda value: True,  # JSON and Python literals can write every value
    "plain_text": _is_plain,
    "between_signs": lambda value: not isinstance(value, str) or "<" not in value,
    # What is read as real XML needs escapes, which templates do not write.
    "plain_xml": lambda value: _is_plain(value) and not {*"<>&"} & {*json.dumps(value)},
    # Elements named after members need a schema of them, which drawn calls do not have.
    "scalars": lambda value: _is_plain(value) and not isinstance(value, list | dict),
}
PLAIN: Mapping[str, Meaning] = {
    "tool": Meaning("I think.", "", (FunctionCall("get_weather", {"city": "Paris"}),)),
    "reasoning": Meaning("I think.", "Hello."),
}
"""What every parser of a kind must understand, as a whole, in a format that it reads."""


class _Catalogue(Document, frozen=True):
    """``same``: parsers that read the formats of another one."""

    tool: Mapping[str, tuple[Format, ...]]
    reasoning: Mapping[str, tuple[Format, ...]]
    same: Mapping[str, Mapping[str, str]]


@functools.cache
def _catalogue() -> _Catalogue:
    path = DATA / "fuzz" / "formats.toml"
    return load(_Catalogue, path, 1 << 20, what="the formats of parsers")


def formats_of(kind: str, name: str) -> tuple[Format, ...]:
    """Return the formats of a ``tool`` or ``reasoning`` parser; empty if no writer is known."""
    catalogue = _catalogue()
    forms: Mapping[str, tuple[Format, ...]] = getattr(catalogue, kind)
    return forms.get(catalogue.same[kind].get(name, name), ())
