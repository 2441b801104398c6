"""Values that servers are not prepared for: limits of types, numbers that are none, wrong types,
long and deep values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NUMBERS: tuple[float, ...] = (
    *(
        0,
        1,
        -1,
        2,
        1000,
        10**6,
        2**31 - 1,
        2**31,
        -(2**31) - 1,
        2**32,
        2**53,
        2**63 - 1,
        2**63,
        -(2**63) - 1,
        2**64,
        2**70,
        -(2**70),
    ),
    *(0.5, -0.5, 1.5, 1e-320, 1e308, float("nan"), float("inf"), float("-inf")),
)
_TEXTS = (
    "",
    " ",
    "a",
    "1",
    "many",
    "null",
    "\x00",
    "\ud800",
    "\U0001f600",
    "a" * 20_000,
    "[",
    "http://127.0.0.1:9/x",
    "data:,",
    "../x",
)
_PLAIN: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        [],
        {},
        [None],
        [[]],
        [{}],
        [0],
        [-1],
        [2**63],
        [2**70],
        [10**6],
        [0.5],
        [""],
        ["a"],
        [True],
    ),
    *(
        {"a": 1},
        {"": None},
        {"type": "x"},
        {"0": 1},
        {"-1": 1},
        {"1000000": 1},
        {"a": "b"},
        {"type": "object"},
    ),
)


def nested(depth: int, kind: type = list) -> Any:
    """Return an empty list or object inside others."""
    value: Any = kind()
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


VALUES: tuple[Any, ...] = (*_PLAIN, *_NUMBERS, *_TEXTS, nested(200), nested(200, dict))
"""What every field is set to once."""
BODIES = (
    "",
    "{",
    "[]",
    "[{}]",
    "null",
    "1",
    '"a"',
    "true",
    "{}",
    "NaN",
    '{"a": 1',
    "\ufeff{}",
    "[" * 2000 + "]" * 2000,
)
"""Texts of whole bodies."""
PARAMETERS = (
    "",
    "a",
    "0",
    "-1",
    str(2**31),
    str(2**63),
    str(2**70),
    "NaN",
    "true",
    "%00",
    "%ff",
    "%F0%9F%98%80",
    "..%2F..",
    "a" * 2000,
)
"""Values of parameters in a path or query, already quoted."""


def of_type(schema: Mapping[str, Any]) -> list[Any]:
    """Return values of a field's own type, which are more often accepted: members of enumerations,
    and plain ones."""
    values: list[Any] = list(schema.get("enum", []))[:8]
    if "const" in schema:
        values.append(schema["const"])
    for part in (
        schema,
        *(
            one
            for key in ("anyOf", "oneOf")
            for one in schema.get(key, ())
            if isinstance(one, Mapping)
        ),
    ):
        values += _plain(part)
    return values


def _plain(schema: Mapping[str, Any]) -> list[Any]:
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items")
        return [
            [value, value] for value in (of_type(items)[:3] if isinstance(items, Mapping) else [])
        ]
    plain: Mapping[Any, list[Any]] = {
        "boolean": [True, False],
        "integer": [0, 1, 2, 5, 100],
        "number": [0, 0.5, 1, 2],
        "string": ["a", "Hi"],
        "object": [{}, {"a": 1}],
    }
    return plain.get(kind, []) + (
        list(schema["enum"])[:8] if isinstance(schema.get("enum"), list) else []
    )
