"""How models write a call: one small function for each family of formats.

``catalogue.py`` says which parser reads which.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from .meaning import Call


@dataclasses.dataclass(frozen=True)
class Written:
    """A call to be written: its position among the calls of the answer, and the style of JSON."""

    call: Call
    index: int
    style: str

    @property
    def name(self) -> str:
        return self.call.name

    def json(self, value: Any) -> str:
        """Return a value as JSON in the style of the answer."""
        separators = (",", ":") if self.style == "compact" else None
        return json.dumps(value, ensure_ascii=self.style == "escaped", separators=separators)

    def scalar(self, value: Any) -> str:
        """Return a value as tags enclose it: strings as they are, everything else as JSON."""
        return value if isinstance(value, str) else self.json(value)


Writer = Callable[[Written], str]


def json_call(key: str = "arguments") -> Writer:
    """Write ``{"name": ..., "arguments": {...}}``."""
    return lambda call: call.json({"name": call.name, key: dict(call.call.arguments)})


def arguments_only(pattern: str) -> Writer:
    """Write the name and the arguments as JSON into ``pattern``, at NAME, ARGUMENTS and INDEX."""

    def write(call: Written) -> str:
        text = pattern.replace("NAME", call.name).replace("INDEX", str(call.index))
        return text.replace("ARGUMENTS", call.json(dict(call.call.arguments)))

    return write


def keyed_call(call: Written) -> str:
    """Write ``{name: {...}}``."""
    return call.json({call.name: dict(call.call.arguments)})


def tags(head: str, argument: str, tail: str, kinds: Mapping[type, str] | None = None) -> Writer:
    """Write each argument into ``argument``, at KEY and VALUE; at KIND its type in the words of
    ``kinds``, at STRING whether it is a string."""

    def write(call: Written) -> str:
        written = []
        for key, value in call.call.arguments.items():
            text = argument.replace("KEY", key).replace(
                "STRING", "true" if isinstance(value, str) else "false"
            )
            if kinds:
                text = text.replace("KIND", kinds[type(value)])
            written.append(text.replace("VALUE", call.scalar(value)))
        return (
            head.replace("NAME", call.name).replace("INDEX", str(call.index + 1))
            + "".join(written)
            + tail
        )

    return write


def pythonic(call: Written) -> str:
    """Write ``name(key='value')``."""
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.call.arguments.items())})"


def gemma(call: Written) -> str:
    """Write Gemma 4's ``call:name{key:<|"|>value<|"|>}``."""
    members = ",".join(f"{key}:{_gemma_value(value)}" for key, value in call.call.arguments.items())
    return f"<|tool_call>call:{call.name}{{{members}}}<tool_call|>"


def _gemma_value(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, list):
        return f"[{','.join(map(_gemma_value, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_gemma_value(member)}' for key, member in value.items())}}}"
    return json.dumps(value)


def function_gemma(call: Written) -> str:
    """Write FunctionGemma's ``call:name{key:<escape>value<escape>}``."""
    members = ",".join(
        f"{key}:<escape>{call.scalar(value)}<escape>" for key, value in call.call.arguments.items()
    )
    return f"<start_function_call>call:{call.name}{{{members}}}<end_function_call>"


Limit = Callable[[Any], bool]
"""Whether a format can write an argument."""


def anything(value: Any) -> bool:
    """JSON and Python literals can write every value."""
    return True


def plain_text(value: Any) -> bool:
    """Tags enclose strings without escapes: outer space and what looks like a closing tag cannot be
    told from the format."""
    return not isinstance(value, str) or (value == value.strip() and "<" not in value)


def between_signs(value: Any) -> bool:
    """Strings between signs without escapes."""
    return not isinstance(value, str) or "<" not in value


def plain_xml(value: Any) -> bool:
    """What is read as real XML needs escapes, which templates do not write."""
    return plain_text(value) and not any(sign in json.dumps(value) for sign in "<>&")


def scalars(value: Any) -> bool:
    """Elements named after members need a schema of what is in them, which drawn calls do not have."""
    return plain_text(value) and not isinstance(value, list | dict)
