"""Strategies for values of a schema.

References are followed; recursion a few levels deep, and then nothing can be drawn: an instance must
leave it out.
"""

from __future__ import annotations

import json
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import Any

from hypothesis import provisional
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from .features import DEFINITIONS, definitions

MAX_EXTRA = 3
"""Maximum number of items, or undeclared properties, beyond what a schema requires."""
_NAMES = ("a", "key", "surplus", "x y", "\u00fc", "0")
_MAX_MULTIPLE = 1000
"""Unbounded multiples are drawn up to this many times the step."""
_SIMPLE = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(("", "text"))
ANYTHING: st.SearchStrategy[Any] = _SIMPLE | st.just([]) | st.just({})

_ZONES = st.sampled_from(("Z", "+00:00", "-08:30", "+14:00"))
_TIMES = st.builds(lambda time, zone: time.isoformat() + zone, st.times(), _ZONES)
_HOSTS = provisional.domains()
_LOCAL = st.text(alphabet=string.ascii_letters + string.digits, min_size=1, max_size=12)
FORMATS: Mapping[str, st.SearchStrategy[str]] = MappingProxyType(
    {
        "date": st.dates().map(str),
        "time": _TIMES,
        "date-time": st.builds(lambda day, time: f"{day}T{time}", st.dates(), _TIMES),
        "email": st.builds(lambda name, host: f"{name}@{host}", _LOCAL, _HOSTS),
        "uuid": st.uuids().map(str),
        "ipv4": st.ip_addresses(v=4).map(str),
        "ipv6": st.ip_addresses(v=6).map(str),
        "hostname": _HOSTS,
        "uri": provisional.urls(),
    }
)


def values_matching(
    schema: Mapping[str, Any], rounds: int = 2, *, extras: bool = True
) -> st.SearchStrategy[Any]:
    """Return a strategy for values that should satisfy a schema; empty if there are none.

    The caller must filter. ``rounds`` is how often a definition may be nested inside itself. With
    ``extras`` false, objects that declare properties have no others, because some backends write
    declared properties only.
    """
    return _Values(definitions(schema), rounds, extras).matching(schema, Counter({"#": 1}))


class _Values:
    """Values of a schema with the definitions ``parts``.

    ``inside`` counts how often each definition was entered on the way to a part of the schema.
    """

    def __init__(self, parts: Mapping[str, Any], rounds: int, extras: bool) -> None:
        self.parts, self.rounds, self.extras = parts, rounds, extras

    def matching(self, schema: Any, inside: Counter[str]) -> st.SearchStrategy[Any]:
        schema, inside = self._resolved(schema, inside)
        if isinstance(schema, bool):
            return ANYTHING if schema else st.nothing()
        if "const" in schema:
            return st.just(schema["const"])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        for key in ("anyOf", "oneOf"):
            if key in schema:
                siblings = {k: v for k, v in schema.items() if k != key}
                return st.one_of([self._all([siblings, branch], inside) for branch in schema[key]])
        if "allOf" in schema:
            siblings = {k: v for k, v in schema.items() if k != "allOf"}
            return self._all([siblings, *schema["allOf"]], inside)
        kind = schema.get("type")
        if isinstance(kind, list):
            return st.one_of([self.matching({**schema, "type": name}, inside) for name in kind])
        if kind == "object":
            return self._objects(schema, inside)
        if kind == "array":
            return self._arrays(schema, inside)
        return primitive_values(schema)

    def _resolved(self, schema: Any, inside: Counter[str]) -> tuple[Any, Counter[str]]:
        """Return the schema that a reference leads to; False if it leads too deep."""
        while isinstance(schema, Mapping) and "$ref" in schema:
            pointer = schema["$ref"]
            if inside[pointer] >= self.rounds:
                return False, inside
            schema, inside = self.parts[pointer], inside + Counter({pointer: 1})
        if isinstance(schema, Mapping):
            schema = {key: value for key, value in schema.items() if key not in DEFINITIONS}
        return schema, inside

    def _all(self, parts: list[Any], inside: Counter[str]) -> st.SearchStrategy[Any]:
        """Return values that match all parts."""
        resolved = [self._resolved(part, inside) for part in parts]
        entered = inside
        for _, counts in resolved:
            entered |= counts
        return self.matching(self._merge([part for part, _ in resolved]), entered)

    def _merge(self, parts: list[Any]) -> Any:
        """Merge schemas into one.

        Equal keywords collapse, ``properties`` and ``required`` are joined; False for other values of
        one keyword.
        """
        merged: dict[str, Any] = {}
        nested: list[Any] = []
        for part in parts:
            if part is False:
                return False
            for key, value in part.items() if part is not True else ():
                if key == "properties":
                    merged[key] = {**merged.get(key, {}), **value}
                elif key == "required":
                    merged[key] = [*merged.get(key, []), *value]
                elif key == "allOf":
                    nested += value
                elif merged.setdefault(key, value) != value:
                    return False
        return {**merged, "allOf": nested} if nested else merged

    def _objects(
        self, schema: Mapping[str, Any], inside: Counter[str]
    ) -> st.SearchStrategy[dict[str, Any]]:
        properties = schema.get("properties", {})
        declared = {name: self.matching(body, inside) for name, body in properties.items()}
        required = list(dict.fromkeys(schema.get("required", [])))
        mandatory = {name: declared.get(name, ANYTHING) for name in required}
        optional = {
            name: values
            for name, values in declared.items()
            if name not in mandatory and not values.is_empty
        }
        if any(values.is_empty for values in mandatory.values()):
            return st.nothing()
        least = schema.get("minProperties", 0)
        most = schema.get("maxProperties", len(declared) + len(mandatory) + MAX_EXTRA)
        is_open = self.extras or "properties" not in schema
        undeclared = self.matching(schema.get("additionalProperties", is_open), inside)
        names = [name for name in _NAMES if name not in declared and name not in mandatory]
        extra_count = (
            0 if undeclared.is_empty else min(MAX_EXTRA, most - len(mandatory), len(names))
        )
        # Some backends write properties only in the order of the schema.
        order = list(dict.fromkeys((*declared, *required, *_NAMES)))
        declared_part = st.fixed_dictionaries(mandatory, optional=optional).map(
            lambda value: dict(sorted(value.items(), key=lambda item: order.index(item[0])))
        )
        if extra_count <= 0:
            return declared_part.filter(lambda value: least <= len(value) <= most)
        extra = st.dictionaries(st.sampled_from(names), undeclared, max_size=extra_count)
        # Declared properties come first, so that maxProperties cuts undeclared ones.
        return st.builds(
            lambda first, rest: dict(list({**first, **rest}.items())[:most]), declared_part, extra
        ).filter(lambda value: least <= len(value))

    def _arrays(
        self, schema: Mapping[str, Any], inside: Counter[str]
    ) -> st.SearchStrategy[list[Any]]:
        first, further = schema.get("prefixItems"), schema.get("items", True)
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        if first is not None:
            further = schema.get("items", self.extras)
        elif isinstance(further, list):  # draft 7
            first, further = further, schema.get("additionalItems", self.extras)
        if first is not None:
            return self._tuples(first, further, least, most, inside)
        item = self.matching(further, inside)
        unique = partial(json.dumps, sort_keys=True) if schema.get("uniqueItems") else None
        size = min(most, least + MAX_EXTRA)
        return _if_possible(st.lists(item, min_size=least, max_size=size, unique_by=unique))

    def _tuples(
        self, first: list[Any], further: Any, least: int, most: float, inside: Counter[str]
    ) -> st.SearchStrategy[list[Any]]:
        drawn = [self.matching(item, inside) for item in first]
        rest = self.matching(further, inside)
        drawn += [] if rest.is_empty else [rest] * MAX_EXTRA
        # A tuple ends before the first item that has no instance.
        usable = next((i for i, item in enumerate(drawn) if item.is_empty), len(drawn))
        upper = min(most, usable)
        if least > upper:
            return st.nothing()
        return st.integers(least, int(upper)).flatmap(
            lambda count: st.tuples(*drawn[:count]).map(list)
        )


def primitive_values(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for values that should satisfy ``schema``; empty if there are none or the
    schema is not supported here.

    The caller must filter.
    """
    if not schema:
        return ANYTHING
    kind = schema.get("type")
    if kind is None:
        return (
            st.one_of([draw(schema) for draw in _KINDS.values()])
            if "not" not in schema
            else st.nothing()
        )
    draw = _KINDS.get(kind)
    return draw(schema) if draw is not None else st.nothing()


def _if_possible(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return the strategy; an empty one if Hypothesis refuses it: its bounds contradict each other,
    or uniqueItems wants more distinct items than exist."""
    try:
        strategy.validate()
    except InvalidArgument:
        return st.nothing()
    return strategy


def _numbers(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    if "multipleOf" in schema:
        return _multiples(schema)
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    lows = [float(low) for low in (above, schema.get("minimum")) if low is not None]
    highs = [float(high) for high in (below, schema.get("maximum")) if high is not None]
    least, most = max(lows, default=None), min(highs, default=None)
    floats = st.floats(
        least,
        most,
        allow_nan=False,
        allow_infinity=False,
        exclude_min=least is not None and least == above,
        exclude_max=most is not None and most == below,
    )
    return _integers(schema) | _if_possible(floats)


def _integers(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    if "multipleOf" in schema:
        return _multiples(schema).filter(lambda value: float(value).is_integer())
    return _counts(schema, Fraction(1))


def _multiples(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return multiples in decimal arithmetic: 0.3 is three times 0.1."""
    step = Fraction(str(schema["multipleOf"]))
    return _counts(schema, step, _MAX_MULTIPLE).map(lambda count: _plain(count * step))


def _counts(
    schema: Mapping[str, Any], step: Fraction, unbounded: int | None = None
) -> st.SearchStrategy[int]:
    """Return the numbers whose product with ``step`` is within the schema's bounds; without any,
    those up to ``unbounded`` times the step."""

    def scaled(key: str) -> list[Fraction]:
        return [Fraction(str(schema[key])) / step] if key in schema else []

    firsts = [math.ceil(low) for low in scaled("minimum")]
    firsts += [math.floor(low) + 1 for low in scaled("exclusiveMinimum")]
    lasts = [math.floor(high) for high in scaled("maximum")]
    lasts += [math.ceil(high) - 1 for high in scaled("exclusiveMaximum")]
    first, last = max(firsts, default=None), min(lasts, default=None)
    if unbounded is not None and first is last is None:
        first, last = -unbounded, unbounded
    return _if_possible(st.integers(first, last))


def _plain(number: Fraction) -> int | float:
    return number.numerator if number.denominator == 1 else float(number)


def _strings(schema: Mapping[str, Any]) -> st.SearchStrategy[str]:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if most is not None and least > most:
        return st.nothing()
    if "pattern" in schema:
        try:
            drawn = st.from_regex(re.compile(python_pattern(schema["pattern"]), re.ASCII))
        except (re.error, RecursionError, OverflowError):
            return st.nothing()
    elif schema.get("format") in FORMATS:
        drawn = FORMATS[schema["format"]]
    else:
        return st.text(min_size=least, max_size=most)
    if "minLength" in schema or most is not None:
        drawn = drawn.filter(
            lambda value: least <= len(value) and (most is None or len(value) <= most)
        )
    return drawn


def python_pattern(pattern: str) -> str:
    """Return the pattern with the meaning of ECMA-262, as JSON Schema requires: ``$`` matches only
    at the very end. To be compiled with ``re.ASCII``, so that ``\\d`` is 0 to 9."""
    return re.sub(r"(?<!\\)\$$", r"\\Z", pattern)


_KINDS: Mapping[str, Callable[[Mapping[str, Any]], st.SearchStrategy[Any]]] = MappingProxyType(
    {
        "null": lambda schema: st.none(),
        "boolean": lambda schema: st.booleans(),
        "integer": _integers,
        "number": _numbers,
        "string": _strings,
    }
)
