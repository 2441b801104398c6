"""Values that servers are not prepared for: limits of types, numbers that are none, wrong types,
long and deep values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..drawn_data import drawn_data

_DATA = drawn_data("odd_values")


def _nested(depth: int, kind: type) -> Any:
    """Return an empty list or object inside others."""
    value: Any = kind()
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


VALUES: tuple[Any, ...] = (
    *_DATA["plain"],
    *_DATA["numbers"],
    *(text.replace("{long}", "a" * 20_000) for text in _DATA["texts"]),
    _nested(200, list),
    _nested(200, dict),
)
"""What every field is set to once."""
BODIES = (*_DATA["bodies"], "[" * 2000 + "]" * 2000)
"""Texts of whole bodies."""
PARAMETERS = (*_DATA["parameters"], "a" * 2000)
"""Values of parameters in a path or query, already quoted."""


def of_type(schema: Mapping[str, Any]) -> list[Any]:
    """Return values of a field's own type, which are more often accepted: members of enumerations,
    and plain ones."""
    values = list(schema.get("enum", []))[:8]
    values += [schema["const"]] if "const" in schema else []
    alternatives = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    for part in (schema, *(one for one in alternatives if isinstance(one, Mapping))):
        if part.get("type") == "array":
            items = part.get("items")
            of_items = of_type(items)[:3] if isinstance(items, Mapping) else []
            values += ([value, value] for value in of_items)
        else:
            values += _OF_TYPE.get(part.get("type", ""), [])
            values += part["enum"][:8] if isinstance(part.get("enum"), list) else []
    return values


_OF_TYPE: Mapping[str, list[Any]] = {
    "boolean": [True, False],
    "integer": [0, 1, 2, 5, 100],
    "number": [0, 0.5, 1, 2],
    "string": ["a", "Hi"],
    "object": [{}, {"a": 1}],
}
