"""Strategies for values of schemas without subschemas: bounded numbers, strings with a length,
pattern or format, and untyped schemas."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from hypothesis import provisional
from hypothesis import strategies as st

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
    integers = _integers(schema)
    if "multipleOf" in schema:
        return _multiples(schema)
    least, least_open = _lowest(schema)
    most, most_open = _highest(schema)
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
    return integers | floats


def _integers(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    if "multipleOf" in schema:
        return _multiples(schema).filter(lambda value: float(value).is_integer())
    least, least_open = _lowest(schema)
    most, most_open = _highest(schema)
    low = None if least is None else math.floor(least) + 1 if least_open else math.ceil(least)
    high = None if most is None else math.ceil(most) - 1 if most_open else math.floor(most)
    return (
        st.nothing()
        if low is not None and high is not None and low > high
        else st.integers(low, high)
    )


def _multiples(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return multiples in decimal arithmetic: 0.3 is three times 0.1."""
    step = Fraction(str(schema["multipleOf"]))
    least, least_open = _lowest(schema)
    most, most_open = _highest(schema)
    low = None if least is None else Fraction(str(least)) / step
    high = None if most is None else Fraction(str(most)) / step
    first = None if low is None else math.floor(low) + 1 if least_open else math.ceil(low)
    last = None if high is None else math.ceil(high) - 1 if most_open else math.floor(high)
    if first is not None and last is not None and first > last:
        return st.nothing()
    if first is None and last is None:
        first, last = -_MAX_MULTIPLE, _MAX_MULTIPLE
    return st.integers(first, last).map(lambda count: _plain(count * step))


def _plain(number: Fraction) -> int | float:
    return number.numerator if number.denominator == 1 else float(number)


def _lowest(schema: Mapping[str, Any]) -> tuple[float | None, bool]:
    """Return the lower bound and whether it is exclusive."""
    closed, opened = schema.get("minimum"), schema.get("exclusiveMinimum")
    if opened is not None and (closed is None or opened >= closed):
        return opened, True
    return closed, False


def _highest(schema: Mapping[str, Any]) -> tuple[float | None, bool]:
    closed, opened = schema.get("maximum"), schema.get("exclusiveMaximum")
    if opened is not None and (closed is None or opened <= closed):
        return opened, True
    return closed, False


def _strings(schema: Mapping[str, Any]) -> st.SearchStrategy[str]:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if most is not None and least > most:
        return st.nothing()
    if "pattern" in schema:
        try:
            # ECMA-262 semantics: ``$`` matches only at the very end, ``\\d`` is 0 to 9.
            drawn = st.from_regex(
                re.compile(re.sub(r"(?<!\\)\$$", r"\\Z", schema["pattern"]), re.ASCII)
            )
        except (re.error, RecursionError, OverflowError):
            return st.nothing()
    elif "format" in schema:
        if schema["format"] not in FORMATS:
            return st.text(min_size=least, max_size=most)
        drawn = FORMATS[schema["format"]]
    else:
        return st.text(min_size=least, max_size=most)
    if "minLength" in schema or most is not None:
        drawn = drawn.filter(
            lambda value: least <= len(value) and (most is None or len(value) <= most)
        )
    return drawn


_KINDS: Mapping[str, Callable[[Mapping[str, Any]], st.SearchStrategy[Any]]] = MappingProxyType(
    {
        "null": lambda schema: st.none(),
        "boolean": lambda schema: st.booleans(),
        "integer": _integers,
        "number": _numbers,
        "string": _strings,
    }
)
