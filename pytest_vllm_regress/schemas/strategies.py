"""``json_schemas``: a Hypothesis strategy for JSON schemas.

Why drawn schemas are satisfiable: every node is drawn around an instance that it accepts, no part
contradicts another, and a reference to an unfinished definition appears only where an instance may
leave it out (an optional property, the items of an array that may be empty, an alternative other
than the first).

Why they shrink well: the simplest kind comes first, each keyword depends on a boolean of its own,
and subschemas use the same strategy at every depth, so that Hypothesis can replace an ancestor by
its descendant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from pytest_vllm_regress.schemas import scalars
from pytest_vllm_regress.schemas.contradictions import contradict
from pytest_vllm_regress.schemas.profile import (
    Budget,
    Dialect,
    Feature,
    Profile,
    as_budget,
    as_profile,
)
from pytest_vllm_regress.schemas.scalars import Draw, Schema, maybe

PLAIN_NAMES = ("a", "b", "c", "name", "id", "kind", "value", "next")
UNICODE_NAMES = ("\u00e9", "\u540d\u524d", "\U0001f600", "e\u0301")
ESCAPED_NAMES = ('a"b', "a\\b", "a/b", "a~b", "a\nb", "a%b", "")
DISCRIMINATOR = "tag"


@dataclass
class _State:
    """Mutable state of one draw: the number of nodes left in the budget, and the shared definitions
    so far."""

    left: int
    definitions: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Place:
    """Position of a node: its depth and the unfinished definitions it may refer to."""

    profile: Profile
    budget: Budget
    state: _State
    depth: int = 0
    open_names: tuple[str, ...] = ("#",)
    reachable: tuple[str, ...] = ()
    """The ``open_names`` that lie behind a guard.

    Schemas that refer to them still have finite instances.
    """
    entered: tuple[str, ...] = ()
    """The ``open_names`` that lie behind an array or object.

    A reference to them applies to another value.
    """

    def deeper(self, *, guarded: bool = False, inside: bool = False) -> _Place:
        """Return the place one level deeper.

        ``guarded``: an instance may leave that node out. ``inside``: that node describes a part of
        the value.
        """
        reachable = self.open_names if guarded else self.reachable
        return replace(
            self,
            depth=self.depth + 1,
            reachable=reachable,
            entered=self.open_names if inside else self.entered,
        )

    @property
    def may_nest(self) -> bool:
        if self.depth >= self.budget.depth or self.state.left <= 0:
            return False
        return self.depth == 0 or Feature.NESTING in self.profile


_SCALARS = (
    (Feature.BOOLEAN, scalars.boolean),
    (Feature.NULL, scalars.null),
    (Feature.INTEGER, scalars.integer),
    (Feature.NUMBER, scalars.number),
    (Feature.STRING, scalars.string),
    (Feature.CONST, scalars.const),
    (Feature.TYPE_LIST, scalars.type_list),
)


def _kinds(place: _Place) -> list[str]:
    """Return the kinds of schema allowed here, simplest first.

    The list begins alike at every depth, which helps shrinking.
    """
    profile = place.profile
    kinds = [feature.value for feature, _ in _SCALARS if feature in profile]
    if Feature.CONST_ANY in profile and Feature.CONST not in profile:
        kinds.append(Feature.CONST.value)
    if Feature.ENUM in profile or Feature.ENUM_MIXED in profile:
        kinds.append(Feature.ENUM.value)
    if Feature.ANY in profile:
        kinds.append(Feature.ANY.value)
    if Feature.RECURSION in profile:  # becomes the simplest kind if there is nothing to refer to
        kinds.append(Feature.RECURSION.value)
    if place.may_nest:
        kinds += [f.value for f in (Feature.ARRAY, Feature.OBJECT) if f in profile]
        kinds += [
            f.value
            for f in (Feature.ANY_OF, Feature.ONE_OF, Feature.ALL_OF, Feature.REF)
            if f in profile
        ]
        if Feature.TUPLE in profile:
            kinds.append(Feature.TUPLE.value)
        if Feature.ALL_OF_SPLIT in profile:
            kinds.append(Feature.ALL_OF_SPLIT.value)
        # Prefer objects, above all at the root: structured output mostly asks for objects.
        kinds += (
            [Feature.OBJECT.value] * (8 if place.depth == 0 else 2) * (Feature.OBJECT in profile)
        )
    return kinds


def _recursion_targets(place: _Place) -> list[str]:
    if Feature.RECURSION not in place.profile:
        return []
    return [
        name
        for name in place.reachable
        if name in place.entered and (name != "#" or Feature.ROOT_REF in place.profile)
    ]


@st.composite
def _node(draw: Draw, place: _Place) -> Schema:
    place.state.left -= 1
    return _of_kind(draw, place, draw(st.sampled_from(_kinds(place))))


def _of_kind(draw: Draw, place: _Place, kind: str) -> Schema:
    for feature, scalar in _SCALARS:
        if kind == feature.value:
            return scalar(draw, place.profile)
    if kind == Feature.ENUM:
        return scalars.enum(draw, place.profile, place.budget.width)
    if kind == Feature.ANY:
        return {}
    if kind == Feature.RECURSION:
        targets = _recursion_targets(place)
        if not targets:
            return _of_kind(draw, place, _kinds(place)[0])
        name = draw(st.sampled_from(targets))
        return {"$ref": _pointer(place.profile, name)}
    containers = {
        Feature.ARRAY.value: _array,
        Feature.TUPLE.value: _tuple,
        Feature.OBJECT.value: _object,
        Feature.ANY_OF.value: _any_of,
        Feature.ONE_OF.value: _one_of,
        Feature.ALL_OF.value: _all_of,
        Feature.ALL_OF_SPLIT.value: _all_of_split,
        Feature.REF.value: _ref,
    }
    return containers[kind](draw, place)


def _array(draw: Draw, place: _Place) -> Schema:
    schema: Schema = {"type": "array"}
    at_least = 0
    if maybe(
        draw
    ):  # one boolean before the others, so that a plain array is the simplest container to draw
        if Feature.ITEM_COUNT in place.profile:
            if maybe(draw):
                at_least = schema["minItems"] = draw(st.integers(0, 3))
            if maybe(draw):
                schema["maxItems"] = at_least + draw(st.integers(0, 3))
        if at_least <= 1 and maybe(draw, Feature.UNIQUE_ITEMS in place.profile):
            schema["uniqueItems"] = True
    schema["items"] = draw(_node(place.deeper(guarded=at_least == 0, inside=True)))
    return schema


def _tuple(draw: Draw, place: _Place) -> Schema:
    count = draw(st.integers(1, place.budget.width))
    items = [draw(_node(place.deeper(inside=True))) for _ in range(count)]
    closed = maybe(draw)
    bounds: Schema = {"minItems": count} if maybe(draw, Feature.ITEM_COUNT in place.profile) else {}
    if place.profile.dialect is Dialect.DRAFT7:
        return {
            "type": "array",
            "items": items,
            **({"additionalItems": False} if closed else {}),
            **bounds,
        }
    return {"type": "array", "prefixItems": items, **({"items": False} if closed else {}), **bounds}


def _names(profile: Profile) -> Sequence[str]:
    names: tuple[str, ...] = PLAIN_NAMES
    if Feature.UNICODE_NAMES in profile:
        names += UNICODE_NAMES
    if Feature.ESCAPED_NAMES in profile:
        names += ESCAPED_NAMES
    return names


def _properties(draw: Draw, place: _Place, names: Sequence[str]) -> Schema:
    """Draw ``properties`` and ``required``. A property that is not required is a guard."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name in names:
        optional = maybe(draw, Feature.OPTIONAL in place.profile)
        properties[name] = draw(_node(place.deeper(guarded=optional, inside=True)))
        if not optional:
            required.append(name)
    return {"properties": properties, **({"required": required} if required else {})}


def _draw_names(draw: Draw, place: _Place, least: int) -> list[str]:
    most = max(least, min(place.budget.width, place.state.left))
    candidates = st.sampled_from(_names(place.profile))
    names: list[str] = draw(st.lists(candidates, min_size=least, max_size=most, unique=True))
    return names


def _object(draw: Draw, place: _Place) -> Schema:
    if maybe(draw, Feature.DICTIONARY in place.profile):
        return {
            "type": "object",
            "additionalProperties": draw(_node(place.deeper(guarded=True, inside=True))),
        }
    schema = {"type": "object", **_properties(draw, place, _draw_names(draw, place, 0))}
    if maybe(draw):
        _decorate(draw, place, schema)
    return schema


def _decorate(draw: Draw, place: _Place, schema: Schema) -> None:
    """Add an object's keywords other than its declared properties."""
    required = len(schema.get("required", []))
    if maybe(draw, Feature.CLOSED in place.profile):
        schema["additionalProperties"] = False
    elif maybe(draw, Feature.ADDITIONAL in place.profile):
        schema["additionalProperties"] = draw(_node(place.deeper(guarded=True, inside=True)))
    if Feature.PROPERTY_COUNT in place.profile:
        # minProperties stays within the required properties: it must not force an optional,
        # possibly recursive, property.
        if maybe(draw):
            schema["minProperties"] = draw(st.integers(0, required))
        if maybe(draw):
            schema["maxProperties"] = required + draw(st.integers(0, 3))


def _any_of(draw: Draw, place: _Place) -> Schema:
    count = draw(st.integers(2, max(2, place.budget.width - 1)))
    first = draw(_node(place.deeper()))
    return {"anyOf": [first, *(draw(_node(place.deeper(guarded=True))) for _ in range(count - 1))]}


def _one_of(draw: Draw, place: _Place) -> Schema:
    """Draw alternatives of which exactly one matches: objects with a distinct required constant, or
    distinct types."""
    count = draw(st.integers(2, max(2, place.budget.width - 1)))
    scalars_too = (
        Feature.ALL_OF_SPLIT in place.profile
    )  # a backend that merges only objects does so here as well
    if not scalars_too or maybe(draw):
        return {"oneOf": [_tagged(draw, place, index) for index in range(count)]}
    spare = {"null", "boolean", "number", "string"} & {
        _type_name(feature.value) for feature in place.profile.features
    }
    alternatives: list[Schema] = []
    used_types: set[str] = set()
    for _ in range(min(count, len(spare))):
        alternative = draw(_node(place.deeper()))
        types = _types(alternative)
        if not types or types & used_types or spare <= used_types | types:
            free = min(spare - used_types)
            alternative, types = {"type": free}, {free}
        used_types |= types
        alternatives.append(alternative)
        if spare <= used_types:
            break
    return {"oneOf": alternatives}


def _type_name(name: str) -> str:
    """Return the type name that distinguishes alternatives: an integer is a number."""
    return "number" if name == "integer" else name


_TYPE_OF = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string"}
_TYPE_OF |= {list: "array", dict: "object"}


def _types(schema: Schema) -> set[str]:
    """Return every type an instance can have; empty if that is not obvious from the schema."""
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return {_type_name(name) for name in names}
    members = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else []
    return {_TYPE_OF[type(member)] for member in members}


def _open_object(draw: Draw, place: _Place, name: str) -> Schema:
    """Draw an object without restrictions on undeclared properties: a node that is one, or an
    object with the node as a property.

    It is drawn as a node so that the shrinker can replace the enclosing combinator by it.
    """
    node: Schema = draw(_node(place.deeper()))
    if node.get("type") == "object" and node.keys() <= {"type", "properties", "required"}:
        return node
    return {"type": "object", "properties": {name: node}, "required": [name]}


def _tagged(draw: Draw, place: _Place, index: int) -> Schema:
    variant = _open_object(draw, place, PLAIN_NAMES[0])
    tag = (
        {"const": PLAIN_NAMES[index]}
        if Feature.CONST in place.profile
        else {"enum": [PLAIN_NAMES[index]]}
    )
    properties = {
        DISCRIMINATOR: tag,
        **{k: v for k, v in variant["properties"].items() if k != DISCRIMINATOR},
    }
    required = [
        DISCRIMINATOR,
        *(name for name in variant.get("required", []) if name != DISCRIMINATOR),
    ]
    return {"type": "object", "properties": properties, "required": required}


def _all_of(draw: Draw, place: _Place) -> Schema:
    """Draw two open objects with different property names, which never contradict each other."""
    first, second = (
        _open_object(draw, place, PLAIN_NAMES[0]),
        _open_object(draw, place, PLAIN_NAMES[1]),
    )
    properties = {
        name: body for name, body in second["properties"].items() if name not in first["properties"]
    }
    required = [name for name in second.get("required", []) if name in properties]
    disjoint = {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
    }
    return {"allOf": [first, disjoint]}


def _all_of_split(draw: Draw, place: _Place) -> Schema:
    """Split the keywords of a scalar schema between two parts. Any other schema is repeated."""
    original = draw(_node(place.deeper()))
    if original.get("type") not in ("string", "integer", "number"):
        return {"allOf": [original, original]}
    second = {key: value for key, value in original.items() if key != "type" and maybe(draw)}
    return {
        "allOf": [
            {key: value for key, value in original.items() if key not in second},
            second or dict(original),
        ]
    }


def _ref(draw: Draw, place: _Place) -> Schema:
    state = place.state
    finished = [name for name, body in state.definitions.items() if body is not None]
    if finished and maybe(draw):
        return {"$ref": _pointer(place.profile, draw(st.sampled_from(finished)))}
    prefix = "d/" if maybe(draw, Feature.ESCAPED_NAMES in place.profile) else "d"
    name = f"{prefix}{len(state.definitions)}"
    state.definitions[name] = None  # unfinished: only usable behind a guard
    # Nothing is reachable at first: the definition is finite wherever it is used only if the guard
    # is inside it.
    inner = replace(place.deeper(), open_names=(*place.open_names, name), reachable=(), entered=())
    state.definitions[name] = draw(_node(inner))
    return {"$ref": _pointer(place.profile, name)}


def _pointer(profile: Profile, name: str) -> str:
    if name == "#":
        return "#"
    return f"#/{_definitions_key(profile)}/" + name.replace("~", "~0").replace("/", "~1")


def _definitions_key(profile: Profile) -> str:
    return "definitions" if profile.dialect is Dialect.DRAFT7 else "$defs"


@st.composite
def _root(draw: Draw, profile: Profile, budget: Budget, satisfiable: bool) -> Schema:
    state = _State(left=budget.nodes)
    schema: Schema = draw(_node(_Place(profile, budget, state)))
    if not satisfiable and maybe(draw):
        schema = contradict(draw, schema)
    if state.definitions:
        schema = {**schema, _definitions_key(profile): dict(state.definitions)}
        if "$ref" in schema and profile.dialect is Dialect.DRAFT7:
            # Draft 7 ignores keywords beside $ref; some readers then ignore the definitions, too.
            schema = {"allOf": [{"$ref": schema.pop("$ref")}], **schema}
    return schema


def json_schemas(
    profile: Profile | str = "full",
    budget: Budget | int = Budget(),  # noqa: B008 (frozen)
    satisfiable: bool = True,
) -> st.SearchStrategy[Schema]:
    """Return a strategy for JSON schemas that are valid according to their metaschema.

    Args:
        profile: features the schemas may use, as a name in ``PROFILES`` or a ``Profile``.
        budget: maximum size, as a ``Budget`` or a number of nodes.
        satisfiable: if true, each schema has at least one finite instance; if false, about half of
            the schemas
            contradict themselves.

    Raises:
        UsageError: the profile is unknown or the budget is impossible.
    """
    return _root(as_profile(profile), as_budget(budget), satisfiable)
