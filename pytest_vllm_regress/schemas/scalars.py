"""Draw schemas without subschemas: null, boolean, numbers, strings, enum, const.

Each drawn schema is satisfiable.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from pytest_vllm_regress.schemas.profile import Feature, Profile

Draw = Callable[[st.SearchStrategy[Any]], Any]
Schema = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """A pattern with instances of every length from ``shortest`` to ``longest`` (None: unbounded)."""

    pattern: str
    shortest: int
    longest: int | None


SHAPES = (
    Shape("^[a-z]*$", 0, None),
    Shape("^[a-z]+$", 1, None),
    Shape("^[A-Z][a-z]*$", 1, None),
    Shape("^[0-9]{3}$", 3, 3),
    Shape("^[a-f0-9]{2,4}$", 2, 4),
    Shape("^[0-9]{2}-[0-9]{2}$", 5, 5),
    Shape("^(yes|no|off)$", 2, 3),
    Shape("^a?b$", 1, 2),
    Shape("^[A-D]$", 1, 1),
    Shape("^\\d{1,2}\\.\\d$", 3, 4),
    Shape("^(ab)+c?$", 2, None),
    Shape("^[^x]$", 1, 1),
)
"""Patterns in the common core of all regex dialects: classes, groups, alternatives, counted
repeats, one escape."""

FORMATS = ("date", "time", "date-time", "email", "uuid", "ipv4", "ipv6", "hostname", "uri")

WORDS = ("a", "b", "no", "yes", "red", "green", "New York", "x-1", "0", "null", "true")
AWKWARD = (
    "",
    'a"b',
    "a\\b",
    "a/b",
    "a~b",
    "line\nbreak",
    "\u00e9",
    "\u540d\u524d",
    "\U0001f600",
    "\u2028",
    "{",
    "]",
)
_FACTORS = (2, 3, 5, 10)
_FRACTIONS = (0.5, 0.25, 2, 1.5)


def maybe(draw: Draw, allowed: bool = True) -> bool:
    """Draw a boolean that shrinks to False. Draw nothing if True is not allowed."""
    return allowed and bool(draw(st.booleans()))


def null(draw: Draw, profile: Profile) -> Schema:
    return {"type": "null"}


def boolean(draw: Draw, profile: Profile) -> Schema:
    return {"type": "boolean"}


def _bounds(
    draw: Draw, profile: Profile, schema: Schema, inside: float, gaps: st.SearchStrategy[Any]
) -> None:
    """Add bounds on either side of ``inside``, which remains an instance."""
    for side, sign in (("inimum", -1), ("aximum", 1)):
        if maybe(draw, Feature.BOUNDS in profile or Feature.EXCLUSIVE_BOUNDS in profile):
            gap = draw(gaps)
            choices = [
                name
                for name, ok in (("m", Feature.BOUNDS in profile), ("e", _exclusive(profile, gap)))
                if ok
            ]
            if choices:
                exclusive = choices[-1] == "e" and (len(choices) == 1 or maybe(draw))
                prefix = "exclusiveM" if exclusive else "m"
                schema[prefix + side] = inside + sign * gap


def _exclusive(profile: Profile, gap: float) -> bool:
    return Feature.EXCLUSIVE_BOUNDS in profile and gap > 0


def integer(draw: Draw, profile: Profile) -> Schema:
    schema: Schema = {"type": "integer"}
    factor = 1
    if maybe(draw, Feature.MULTIPLE_OF in profile):
        factor = schema["multipleOf"] = draw(st.sampled_from(_FACTORS))
    if maybe(draw, Feature.BOUNDS in profile or Feature.EXCLUSIVE_BOUNDS in profile):
        inside = factor * draw(st.integers(-50, 50))
        _bounds(draw, profile, schema, inside, st.integers(0, 120))
    return schema


def number(draw: Draw, profile: Profile) -> Schema:
    schema: Schema = {"type": "number"}
    factor = 0.25
    if maybe(draw, Feature.MULTIPLE_OF in profile):
        factor = schema["multipleOf"] = draw(st.sampled_from(_FRACTIONS))
    if maybe(draw, Feature.BOUNDS in profile or Feature.EXCLUSIVE_BOUNDS in profile):
        inside = factor * draw(st.integers(-40, 40))
        _bounds(
            draw, profile, schema, inside, st.integers(0, 200).map(lambda quarters: quarters / 4)
        )
    return schema


def string(draw: Draw, profile: Profile) -> Schema:
    schema: Schema = {"type": "string"}
    shortest, longest = 0, None
    if maybe(draw, Feature.PATTERN in profile):
        shape = draw(st.sampled_from(SHAPES))
        schema["pattern"] = shape.pattern
        shortest, longest = shape.shortest, shape.longest
        if Feature.PATTERN_LENGTH not in profile:
            return schema
    elif maybe(draw, Feature.FORMAT in profile):
        return {**schema, "format": draw(st.sampled_from(FORMATS))}
    if Feature.LENGTH in profile:
        # An instance of this length always exists.
        length = draw(st.integers(shortest, shortest + 4 if longest is None else longest))
        if maybe(draw):
            schema["minLength"] = draw(st.integers(0, length))
        if maybe(draw):
            schema["maxLength"] = length + draw(st.integers(0, 6))
    return schema


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def values(profile: Profile) -> st.SearchStrategy[Any]:
    """Return a strategy for values of an enum or const.

    Floats are never whole numbers, so that 1 and 1.0 never both appear.
    """
    words = st.sampled_from(WORDS + AWKWARD)
    scalars = (
        st.none() | st.booleans() | st.integers(-20, 20) | st.sampled_from((0.5, -1.25)) | words
    )
    return (
        scalars
        | st.lists(scalars, max_size=2)
        | st.dictionaries(st.sampled_from(WORDS), scalars, max_size=2)
    )


def enum(draw: Draw, profile: Profile, width: int) -> Schema:
    kinds = []
    if Feature.ENUM in profile:
        kinds += [st.sampled_from(WORDS), st.integers(-20, 20)]
    if Feature.ENUM_MIXED in profile:
        kinds.append(values(profile))
    kind = kinds[draw(st.integers(0, len(kinds) - 1))]
    members = draw(st.lists(kind, min_size=1, max_size=width, unique_by=_key))
    schema: Schema = {"enum": members}
    if (
        isinstance(members[0], str)
        and all(isinstance(member, str) for member in members)
        and maybe(draw)
    ):
        schema = {"type": "string", **schema}
    return schema


def const(draw: Draw, profile: Profile) -> Schema:
    if Feature.CONST_ANY in profile and (Feature.CONST not in profile or maybe(draw)):
        return {"const": draw(values(profile))}
    return {"const": draw(st.sampled_from(WORDS))}


def type_list(draw: Draw, profile: Profile) -> Schema:
    """Draw a union of plain types, never of both number and integer."""
    features = (Feature.NULL, Feature.BOOLEAN, Feature.INTEGER, Feature.STRING)
    names = [feature.value for feature in features if feature in profile]
    return {"type": draw(st.lists(st.sampled_from(names), min_size=2, max_size=3, unique=True))}
