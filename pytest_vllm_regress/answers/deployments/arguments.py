"""The options among the arguments of ``vllm serve``, read as its parser reads them."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...util.validation import format_value
from ..api_history.option_names import OptionNames
from ..api_history.store import history

MAX_NOTES = 5
MAX_NEAR = 5
UNSET = "?"
"""The value of an option that the file leaves to a variable, or that an unknown option may mean."""
_OPTION = re.compile(r"(--?[A-Za-z][\w-]*)((?:\.[\w.-]*)?)\+?(?:=(.*))?", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options by their names with underscores: a text, or True for an option without a value.

    ``notes``: options that no release has.
    """

    options: Mapping[str, Any] = dataclasses.field(hash=False)
    notes: tuple[str, ...] = ()


def read_arguments(words: Sequence[str]) -> Arguments:
    """Return the options among ``words``.

    What an unknown option may mean gets the value ``UNSET``.
    """
    names = _names()
    options: dict[str, Any] = {}
    unknown: dict[str, tuple[str, ...]] = {}
    name = "model"
    for word in words:
        match = _OPTION.fullmatch(word)
        if match is None:
            if options.get(name, True) is True:
                options[name] = literal(word)
            continue
        option, keys, value = match.groups()
        if option.startswith("-O"):  # the level may follow without a space
            option, value = "--optimization-level", option[2:] or value
        meaning = names.find(option)
        if meaning is None:
            unknown.setdefault(option, names.near(option) if len(unknown) < MAX_NOTES else ())
        name = _field((meaning or option) + keys)
        options[name] = True if value is None else literal(value)
    for negated in [name for name in options if name.startswith("no_") and options[name] is True]:
        options[negated.removeprefix("no_")] = False
    for near in unknown.values():
        for option in near:
            options.setdefault(_field(option).removeprefix("no_"), UNSET)
    return Arguments(options, _notes(unknown))


def literal(value: str) -> str:
    """Return ``value``, or ``UNSET`` if a variable decides it."""
    return UNSET if "$" in value or "{{" in value else value


@functools.cache
def _names() -> OptionNames:
    return OptionNames.of(history())


def _field(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _notes(unknown: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    notes = []
    for option, near in list(unknown.items())[:MAX_NOTES]:
        more = f" and {len(near) - MAX_NEAR} more" if len(near) > MAX_NEAR else ""
        advice = f"; close to it: {', '.join(near[:MAX_NEAR])}{more}" if near else ""
        notes.append(f"{format_value(option)} is no option of vllm serve that is known{advice}")
    if len(unknown) > MAX_NOTES:
        notes.append(f"{len(unknown) - MAX_NOTES} more options are not known")
    return tuple(notes)
