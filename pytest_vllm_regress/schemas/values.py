"""Strategies for values of a schema.

``unroll`` replaces references by the schemas they point to. Recursion is followed a few levels deep
and then cut where an instance may leave it out. The result accepts a subset of what the schema
accepts, and its dialect is draft 7. ``values_matching`` draws values of it.
"""

from __future__ import annotations

import json
import math
import operator
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

NEVER = False
CLOSED = "x-closed"
"""Marks an object that accepts only the properties declared in any part of its allOf.

Draft 7 has no keyword for that.
"""
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


def unroll(schema: Mapping[str, Any], rounds: int = 2, *, extras: bool = True) -> Any:
    """Return the schema without references.

    ``rounds`` is how often a definition may be nested inside itself. With ``extras`` false, objects
    that declare properties accept no others, because some backends write declared properties only.
    """
    return _Unroller(definitions(schema), rounds, extras).unroll(schema, Counter({"#": 1}))


class _Unroller:
    def __init__(self, parts: Mapping[str, Any], rounds: int, extras: bool) -> None:
        self.parts, self.rounds, self.extras = parts, rounds, extras

    def unroll(self, schema: Any, inside: Counter[str]) -> Any:
        if isinstance(schema, bool):
            return schema
        if "$ref" in schema:
            pointer = schema["$ref"]
            if inside[pointer] >= self.rounds:
                return NEVER
            return self.unroll(self.parts[pointer], inside + Counter({pointer: 1}))
        unrolled: Any = {key: value for key, value in schema.items() if key not in DEFINITIONS}
        for rewrite in (self._alternatives, self._conjunction, self._array, self._object):
            if unrolled is not NEVER:
                unrolled = rewrite(unrolled, inside)
        return unrolled

    def _alternatives(self, schema: dict[str, Any], inside: Counter[str]) -> Any:
        for key in {"anyOf", "oneOf"} & schema.keys():
            branches = [self.unroll(branch, inside) for branch in schema[key]]
            schema[key] = [branch for branch in branches if branch is not NEVER]
            if not schema[key]:
                return NEVER
        return schema

    def _conjunction(self, schema: dict[str, Any], inside: Counter[str]) -> Any:
        if "allOf" in schema:
            schema["allOf"] = [self.unroll(branch, inside) for branch in schema["allOf"]]
            if NEVER in [branch for branch in schema["allOf"] if isinstance(branch, bool)]:
                return NEVER
        return schema

    def _array(self, schema: dict[str, Any], inside: Counter[str]) -> Any:
        first = schema.pop("prefixItems", None)
        further = schema.pop("items", None)
        if isinstance(further, list):
            first, further = further, schema.pop("additionalItems", None)
        least = schema.get("minItems", 0)
        if first is not None:
            first = [self.unroll(item, inside) for item in first]
            # Cut the tuple before the first item that has no instance.
            usable = next((i for i, item in enumerate(first) if item is NEVER), len(first))
            schema["items"] = first[:usable]
            if usable < len(first):
                schema["maxItems"] = usable
            if further is not None:
                schema["additionalItems"] = self.unroll(further, inside)
            elif not self.extras:
                schema["additionalItems"] = False
            return NEVER if least > usable < len(first) else schema
        if further is not None:
            schema["items"] = self.unroll(further, inside)
            if schema["items"] is NEVER:
                if least > 0:
                    return NEVER
                schema.pop("items")
                schema["maxItems"] = 0
        return schema

    def _object(self, schema: dict[str, Any], inside: Counter[str]) -> Any:
        if "properties" in schema:
            properties = {
                name: self.unroll(body, inside) for name, body in schema["properties"].items()
            }
            if any(properties.get(name) is NEVER for name in schema.get("required", [])):
                return NEVER
            schema["properties"] = properties
            if not self.extras and "additionalProperties" not in schema:
                schema[CLOSED] = True
        if "additionalProperties" in schema:
            schema["additionalProperties"] = self.unroll(schema["additionalProperties"], inside)
        return schema


def values_matching(schema: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values that should satisfy an unrolled schema; empty if there are none.

    The caller must filter.
    """
    if isinstance(schema, bool):
        return ANYTHING if schema else st.nothing()
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            siblings = {k: v for k, v in schema.items() if k != key}
            return st.one_of(
                [
                    values_matching(_merge([siblings, branch]) if siblings else branch)
                    for branch in schema[key]
                ]
            )
    if "allOf" in schema:
        return values_matching(
            _merge([{k: v for k, v in schema.items() if k != "allOf"}, *schema["allOf"]])
        )
    kind = schema.get("type")
    if isinstance(kind, list):
        return st.one_of([values_matching({**schema, "type": name}) for name in kind])
    if kind == "object":
        return _objects(schema)
    if kind == "array":
        return _arrays(schema)
    return primitive_values(schema)


def _merge(parts: list[Any]) -> Any:
    """Merge schemas into one.

    Equal keywords collapse, ``properties`` and ``required`` are joined, conflicts stay in an allOf.
    """
    merged: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, bool):
            if not part:
                return False
            continue
        for key, value in part.items():
            if key == "properties":
                merged[key] = {**merged.get(key, {}), **value}
            elif key == "required":
                merged[key] = [*merged.get(key, []), *value]
            elif key == "allOf" or merged.get(key, value) != value:
                merged.setdefault("allOf", []).extend(value if key == "allOf" else [{key: value}])
            else:
                merged[key] = value
    nested = merged.pop("allOf", [])
    if nested and any(
        nested_part.keys() & merged.keys()
        for nested_part in nested
        if isinstance(nested_part, Mapping)
    ):
        return {"not": {}} if merged.get("type") in ("object", "array") else False
    return _merge([merged, *nested]) if nested else merged


def _objects(schema: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    declared = {name: values_matching(body) for name, body in schema.get("properties", {}).items()}
    required = list(dict.fromkeys(schema.get("required", [])))
    mandatory = {name: declared.get(name, ANYTHING) for name in required}
    optional = {
        name: values
        for name, values in declared.items()
        if name not in mandatory and not values.is_empty
    }
    least = schema.get("minProperties", 0)
    most = schema.get("maxProperties", len(declared) + len(mandatory) + MAX_EXTRA)
    undeclared = values_matching(schema.get("additionalProperties", CLOSED not in schema))
    names = [name for name in _NAMES if name not in declared and name not in mandatory]
    extra_count = 0 if undeclared.is_empty else min(MAX_EXTRA, most - len(mandatory), len(names))
    # Some backends write properties only in the order of the schema.
    order = {
        name: index for index, name in enumerate(dict.fromkeys((*declared, *required, *_NAMES)))
    }
    declared_part = st.fixed_dictionaries(mandatory, optional=optional).map(
        lambda value: dict(sorted(value.items(), key=lambda item: order[item[0]]))
    )
    if extra_count <= 0:
        return declared_part.filter(lambda value: least <= len(value) <= most)
    extra = st.dictionaries(st.sampled_from(names), undeclared, max_size=extra_count)
    # Declared properties come first, so that maxProperties cuts undeclared ones.
    return st.builds(
        lambda first, rest: dict(list({**first, **rest}.items())[:most]), declared_part, extra
    ).filter(lambda value: least <= len(value))


def _arrays(schema: Mapping[str, Any]) -> st.SearchStrategy[list[Any]]:
    items = schema.get("items", True)
    least = schema.get("minItems", 0)
    most = schema.get("maxItems")
    if isinstance(items, list):
        return _tuples(items, schema.get("additionalItems", True), least, most)
    item = values_matching(items)
    if most is not None and most < least:
        return st.nothing()
    if item.is_empty:
        return st.just([])
    size = least + MAX_EXTRA if most is None else min(most, least + MAX_EXTRA)
    unique = (
        (lambda value: json.dumps(value, sort_keys=True)) if schema.get("uniqueItems") else None
    )
    drawn = st.lists(item, min_size=least, max_size=size, unique_by=unique)
    try:
        drawn.validate()
    except InvalidArgument:  # uniqueItems wants more distinct items than exist
        return st.nothing()
    return drawn


def _tuples(
    items: list[Any], more: Any, least: int, most: int | None
) -> st.SearchStrategy[list[Any]]:
    drawn = [values_matching(item) for item in items]
    more_items = values_matching(more)
    longest = len(items) + (0 if more_items.is_empty else MAX_EXTRA)
    upper = longest if most is None else min(most, longest)

    def of_length(count: int) -> st.SearchStrategy[list[Any]]:
        parts = [*drawn, *([more_items] * max(0, count - len(drawn)))][:count]
        return st.tuples(*parts).map(list)

    return st.integers(least, upper).flatmap(of_length) if least <= upper else st.nothing()


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


def _numbers(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    if "multipleOf" in schema:
        return _multiples(schema)
    (least, least_open), (most, most_open) = _lowest(schema), _highest(schema)
    if (
        least is not None
        and most is not None
        and (least > most or (least == most and (least_open or most_open)))
    ):
        return st.nothing()
    floats = st.floats(
        None if least is None else float(least),
        None if most is None else float(most),
        allow_nan=False,
        allow_infinity=False,
        exclude_min=least_open,
        exclude_max=most_open,
    )
    return _integers(schema) | floats


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
    (least, least_open), (most, most_open) = _lowest(schema), _highest(schema)
    first = last = None
    if least is not None:
        low = Fraction(str(least)) / step
        first = math.floor(low) + 1 if least_open else math.ceil(low)
    if most is not None:
        high = Fraction(str(most)) / step
        last = math.ceil(high) - 1 if most_open else math.floor(high)
    if first is not None and last is not None and first > last:
        return st.nothing()
    if unbounded is not None and first is last is None:
        first, last = -unbounded, unbounded
    return st.integers(first, last)


def _plain(number: Fraction) -> int | float:
    return number.numerator if number.denominator == 1 else float(number)


def _bound(
    closed_key: str,
    open_key: str,
    is_tighter: Callable[[float, float], bool],
    schema: Mapping[str, Any],
) -> tuple[float | None, bool]:
    """Return a bound and whether it is exclusive."""
    closed, opened = schema.get(closed_key), schema.get(open_key)
    if opened is not None and (closed is None or is_tighter(opened, closed)):
        return opened, True
    return closed, False


_lowest = partial(_bound, "minimum", "exclusiveMinimum", operator.ge)
_highest = partial(_bound, "maximum", "exclusiveMaximum", operator.le)


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
