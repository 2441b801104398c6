"""What a drawn schema may contain: features, profiles (the features one backend claims to support)
and budgets (sizes)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pytest_vllm_regress.errors import UsageError


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


_F = Feature
_SCALARS = {_F.NULL, _F.BOOLEAN, _F.INTEGER, _F.NUMBER, _F.STRING}
_NESTED = {_F.ARRAY, _F.OBJECT, _F.NESTING, _F.OPTIONAL}
_ALL = frozenset(Feature)

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            "basic",
            frozenset(_SCALARS | _NESTED | {_F.LENGTH, _F.BOUNDS, _F.ITEM_COUNT, _F.ENUM}),
            source="compiled by every structured-output backend since 2024, including lm-format-enforcer 0.10.3",
        ),
        Profile(
            "lm-format-enforcer",
            frozenset(
                _SCALARS
                | _NESTED
                | {
                    _F.LENGTH,
                    _F.PATTERN,
                    _F.ITEM_COUNT,
                    _F.CLOSED,
                    _F.DICTIONARY,
                    _F.ENUM,
                    _F.CONST,
                    _F.TYPE_LIST,
                }
                | {_F.ANY_OF, _F.ONE_OF, _F.ALL_OF, _F.REF, _F.RECURSION}
            ),
            # Numeric bounds, multipleOf, uniqueItems, tuples and formats are parsed and dropped. A
            # pattern with a length and a mixed enum raise an exception. Non-ASCII names work only
            # if the tokenizer has them as whole tokens.
            source="lm-format-enforcer 0.10.11, README and jsonschemaparser.get_parser",
        ),
        Profile(
            "xgrammar",
            _ALL
            - {
                _F.MULTIPLE_OF,
                _F.UNIQUE_ITEMS,
                _F.ALL_OF,
                _F.ALL_OF_SPLIT,
                _F.PATTERN_LENGTH,
                _F.PROPERTY_COUNT,
            },
            source="vLLM's has_xgrammar_unsupported_json_features; xgrammar itself drops allOf of several parts",
        ),
        Profile(
            "llguidance",
            _ALL - {_F.UNIQUE_ITEMS, _F.PROPERTY_COUNT},
            source="llguidance docs/json_schema.md",
        ),
        Profile(
            "outlines",
            _ALL
            - {
                _F.BOUNDS,
                _F.EXCLUSIVE_BOUNDS,
                _F.MULTIPLE_OF,
                _F.UNIQUE_ITEMS,
                _F.PATTERN_LENGTH,
                _F.ADDITIONAL,
            }
            - {_F.RECURSION, _F.ROOT_REF, _F.ALL_OF, _F.ALL_OF_SPLIT, _F.ANY},
            source="outlines-core: a schema becomes one regular expression, so no recursion and no arithmetic",
        ),
        Profile("full", _ALL, source="everything the strategies can draw"),
        Profile("full-draft-07", _ALL, Dialect.DRAFT7, source="everything, in the draft 7 dialect"),
    )
}
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


def as_budget(budget: Budget | int) -> Budget:
    """Return the budget; an integer stands for that many nodes with the default depth and width."""
    return budget if isinstance(budget, Budget) else Budget(nodes=budget)
