"""Valid instances and near misses of a schema, each checked with ``jsonschema``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from referencing import Registry

from .features import definitions, walk
from .values import python_pattern, values_matching


def _pattern(
    validator: Validator, pattern: str, value: Any, schema: Any
) -> Iterator[ValidationError]:
    if isinstance(value, str) and not re.search(python_pattern(pattern), value, re.ASCII):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


_DRAFT_7, _DRAFT_2020 = (
    extend(kind, {"pattern": _pattern})  # type: ignore[no-untyped-call]
    for kind in (Draft7Validator, Draft202012Validator)
)


def validator(schema: Mapping[str, Any]) -> Validator:
    """Return a validator that also checks formats.

    A schema with an ``items`` list or ``definitions`` is draft 7, any other 2020-12.
    """
    nodes = [
        node
        for part in definitions(schema).values()
        for node in walk(part)
        if isinstance(node, Mapping)
    ]
    old = "definitions" in schema or any(isinstance(node.get("items"), list) for node in nodes)
    kind = _DRAFT_7 if old and not any("prefixItems" in node for node in nodes) else _DRAFT_2020
    # Without a registry of its own, jsonschema would fetch references to other documents, also
    # ``file:`` ones.
    checker: Validator = kind(schema, format_checker=kind.FORMAT_CHECKER, registry=Registry())
    return checker


def valid_instances(schema: Mapping[str, Any], *, extras: bool = True) -> st.SearchStrategy[Any]:
    """Return a strategy for values that satisfy ``schema``.

    With ``extras`` false, objects have declared properties only, because some backends cannot write
    others. Recursion is followed a few levels deep.
    """
    return values_matching(schema, extras=extras).filter(_is_valid(schema))


def _is_valid(schema: Mapping[str, Any]) -> Callable[[Any], bool]:
    checker = validator(schema)
    return lambda value: checker.is_valid(value)


@dataclass(frozen=True)
class Invalid:
    """A value that ``jsonschema`` rejects, one change away from a valid one.

    ``change`` describes where and what changed.
    """

    value: Any
    change: str


def invalid_instances(
    schema: Mapping[str, Any], *, extras: bool = True
) -> st.SearchStrategy[Invalid]:
    """Return a strategy for near misses: valid instances changed in one place so that
    ``jsonschema`` rejects them.

    It draws nothing for a schema that accepts every near miss as well.
    """

    @st.composite
    def drawn(draw: st.DrawFn) -> Invalid:
        misses = near_misses(schema, draw(valid_instances(schema, extras=extras)))
        assume(misses)
        return draw(st.sampled_from(misses))

    return drawn()


def near_misses(schema: Mapping[str, Any], value: Any) -> list[Invalid]:
    """Return every near miss of one valid instance, larger changes first."""
    is_valid = _is_valid(schema)
    return [
        Invalid(new, change)
        for change, new in _changes(value, *_limits(schema))
        if not is_valid(new)
    ]


def _limits(schema: Mapping[str, Any]) -> tuple[list[float], list[int]]:
    """Return numbers at and just past the schema's bounds, and lengths just past its limits."""
    numbers: set[float] = set()
    lengths: set[int] = set()
    for part in definitions(schema).values():
        for node in walk(part):
            for key, value in node.items() if isinstance(node, Mapping) else ():
                if key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
                    numbers.update((value, value - 1, value + 1))
                elif key in ("minLength", "maxLength", "minItems", "maxItems"):
                    lengths.update((max(0, value - 1), value + 1))
    return sorted(numbers), sorted(lengths)


def _changes(value: Any, numbers: list[float], lengths: list[int]) -> Iterator[tuple[str, Any]]:
    """Yield (description, changed value) pairs; changes to the deepest parts come last."""
    yield from (
        (f"became {new!r}", new)
        for new in _replacements(value, numbers, lengths)
        if not _same(new, value)
    )
    if isinstance(value, dict):
        for key, part in value.items():
            yield f"lost {key!r}", {k: v for k, v in value.items() if k != key}
            for change, new in _changes(part, numbers, lengths):
                yield f"{key!r}: {change}", {**value, key: new}
    if isinstance(value, list):
        for index, part in enumerate(value):
            for change, new in _changes(part, numbers, lengths):
                yield f"[{index}]: {change}", [*value[:index], new, *value[index + 1 :]]


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)


def _replacements(value: Any, numbers: list[float], lengths: list[int]) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, value - 1, value + 0.5, -value - 1, *numbers)
    elif isinstance(value, str):
        yield from (
            value + "x",
            value[:-1],
            "x" + value,
            value.swapcase(),
            value + "\u00e9",
            value + " ",
        )
        yield from ((value or "x") * length for length in lengths if length)
    elif isinstance(value, list):
        yield from (value[:-1], [*value, None], [*value, *value[-1:]], [])
        yield from (value[-1:] * length for length in lengths if value)
    elif isinstance(value, dict):
        yield from ({**value, "surplus": None}, {})
    yield from (None, True, 0, 0.5, "", [], {})
