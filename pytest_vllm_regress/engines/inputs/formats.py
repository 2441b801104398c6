"""How models write reasoning, text and calls. ``data/formats.toml`` says which parser reads which
format.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Annotated, Any, Literal

from ...errors import UsageError
from ...util.codec import Document, Meta, load, replace
from ...util.paths import DATA
from .client_request import ToolChoice


class FunctionCall(Document, frozen=True, omit_defaults=False):
    """A call of a function."""

    name: Annotated[str, Meta(max_length=100)]
    arguments: Mapping[str, Any]


class Meaning(Document, frozen=True, omit_defaults=False):
    """The answer that is meant. ``style``: how its JSON is written: with spaces, without them, or
    with non-ASCII letters escaped."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[FunctionCall, ...] = ()
    style: Literal["spaced", "compact", "escaped"] = "spaced"

    def as_json(self, value: Any) -> str:
        """Return a value as JSON in the style of the answer."""
        separators = (",", ":") if self.style == "compact" else None
        return json.dumps(value, ensure_ascii=self.style == "escaped", separators=separators)


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


class _Catalogue(Document, frozen=True):
    """``same``: parsers that read the formats of another one."""

    tool: Mapping[str, tuple[Format, ...]]
    reasoning: Mapping[str, tuple[Format, ...]]
    same: Mapping[str, Mapping[str, str]]


@functools.cache
def _catalogue() -> _Catalogue:
    path = DATA / "formats.toml"
    return load(_Catalogue, path, 1 << 20, what="the formats of parsers")


def formats_of(kind: str, name: str) -> tuple[Format, ...]:
    """Return the formats of a ``tool`` or ``reasoning`` parser; empty if no writer is known."""
    catalogue = _catalogue()
    forms: Mapping[str, tuple[Format, ...]] = getattr(catalogue, kind)
    return forms.get(catalogue.same[kind].get(name, name), ())


@dataclass(frozen=True)
class CallFormat:
    """How the model of one server writes calls of tools.

    ``parser``: the server's tool parser, empty if it has none. ``always_parsed``: the parser also
    reads the answers to requests that require a call or name a function; other servers take plain
    JSON for these, without a parser.
    """

    parser: str
    always_parsed: bool

    def __call__(self, calls: Sequence[FunctionCall], choice: ToolChoice) -> str:
        """Return the text of calls. Raises ``UsageError`` if the parser's format is not known."""
        if choice != "auto" and not self.always_parsed:
            parameters = [{"name": call.name, "parameters": dict(call.arguments)} for call in calls]
            named = parameters[0]["parameters"]
            return json.dumps(named if choice == "named" else parameters, ensure_ascii=False)
        forms = formats_of("tool", self.parser)
        if not (forms and forms[0].call):
            raise UsageError(
                f"Script.tool_call: it is not known how a model writes calls for the tool parser "
                f"{self.parser!r}. Start the server with another one, for example "
                'server_options={"tool_call_parser": "hermes", "enable_auto_tool_choice": True}'
            )
        return forms[0].text(Meaning(calls=tuple(calls)))
