"""What a drawn schema may contain: features, profiles (the features one backend claims to support)
and budgets (sizes)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ..errors import UsageError


class Dialect(StrEnum):
    """JSON Schema dialects: draft 7 has ``items`` lists and ``definitions``, 2020-12 has
    ``prefixItems`` and ``$defs``."""

    DRAFT7 = "draft-07"
    DRAFT2020 = "2020-12"


class Feature(StrEnum):
    """Something a schema can use and a backend may not support.

    Reports list features in this order.
    """

    NULL = "null"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    STRING = "string"
    ARRAY = "array"
    OBJECT = "object"
    ANY = "any"  # {} or true: every value
    LENGTH = "length"  # minLength, maxLength
    PATTERN = "pattern"
    PATTERN_LENGTH = "pattern-with-length"
    FORMAT = "format"
    BOUNDS = "bounds"  # minimum, maximum
    EXCLUSIVE_BOUNDS = "exclusive-bounds"
    MULTIPLE_OF = "multiple-of"
    ITEM_COUNT = "item-count"  # minItems, maxItems
    UNIQUE_ITEMS = "unique-items"
    TUPLE = "tuple"
    OPTIONAL = "optional"  # a property that is not required
    NESTING = "nesting"  # an array or object inside another one
    CLOSED = "closed"  # additionalProperties: false
    DICTIONARY = "dictionary"  # no properties, additionalProperties: schema
    ADDITIONAL = "additional-schema"  # properties and additionalProperties: schema
    PROPERTY_COUNT = "property-count"  # minProperties, maxProperties
    UNICODE_NAMES = "unicode-names"
    ESCAPED_NAMES = "escaped-names"  # a name that JSON, or a JSON pointer, must escape
    ENUM = "enum"  # strings only, or numbers only
    ENUM_MIXED = "enum-mixed"  # any other enum
    CONST = "const"  # a string
    CONST_ANY = "const-any"  # any other const
    TYPE_LIST = "type-list"
    ANY_OF = "anyOf"
    ONE_OF = "oneOf"
    ALL_OF = "allOf"  # of objects
    ALL_OF_SPLIT = "allOf-split"  # of other things
    REF = "ref"
    RECURSION = "recursion"
    ROOT_REF = "root-ref"  # recursion through "#"


@dataclass(frozen=True)
class Profile:
    """The features one backend claims to support. ``source`` says where the claim is documented."""

    name: str
    features: frozenset[Feature]
    dialect: Dialect = Dialect.DRAFT2020
    source: str = ""
    extras: bool = False
    """Whether the backend writes and accepts undeclared properties of an open object, in any
    position."""

    def __contains__(self, feature: Feature) -> bool:
        return feature in self.features


@dataclass(frozen=True)
class Budget:
    """Maximum size of a schema.

    ``depth`` counts containers and combinators; ``nodes`` is the approximate number of subschemas.
    """

    depth: int = 3
    nodes: int = 12
    width: int = 4
    """Maximum number of properties of an object, members of an enum and alternatives of an anyOf.
    """

    def __post_init__(self) -> None:
        for name in ("depth", "nodes", "width"):
            if getattr(self, name) < 1:
                raise UsageError(f"Budget: {name} must be at least 1, got {getattr(self, name)}")


def _profile(name: str, table: Mapping[str, Any]) -> Profile:
    without = map(Feature, table.get("without", ()))
    return Profile(
        name,
        frozenset(map(Feature, table.get("features", Feature))).difference(without),
        Dialect(table.get("dialect", Dialect.DRAFT2020)),
        table["source"],
    )


TABLES = tomllib.loads((Path(__file__).parents[1] / "data" / "drawn_schemas.toml").read_text())
"""What drawn schemas consist of, as data."""
PROFILES = {name: _profile(name, table) for name, table in TABLES["profiles"].items()}
"""Profiles by name: one for each backend, and ``basic``, ``full`` and ``full-draft-07``."""


def as_profile(profile: Profile | str) -> Profile:
    """Return the profile with this name. Raises UsageError that lists the known names."""
    if isinstance(profile, Profile):
        return profile
    try:
        return PROFILES[profile]
    except KeyError:
        raise UsageError(
            f"no schema profile named {profile!r}; known: {', '.join(PROFILES)}"
        ) from None
