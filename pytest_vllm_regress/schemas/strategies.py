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

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from hypothesis import strategies as st

from .profile import TABLES, Budget, Dialect, Feature, Profile, as_profile

Draw = Callable[[st.SearchStrategy[Any]], Any]
Schema = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """A pattern with instances of every length from ``shortest`` to ``longest`` (None: unbounded)."""

    pattern: str
    shortest: int
    longest: int | None = None


SHAPES = [Shape(**table) for table in TABLES["shapes"]]
PLAIN_NAMES: list[str] = TABLES["plain-names"]
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

    def __contains__(self, feature: Feature) -> bool:
        return feature in self.profile

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
        return self.depth == 0 or Feature.NESTING in self


NodeKind = Callable[[Draw, _Place], Schema]
NodeKinds = tuple[tuple[NodeKind, *tuple[Feature, ...]], ...]


@st.composite
def _node(draw: Draw, place: _Place) -> Schema:
    place.state.left -= 1
    kind: NodeKind = draw(st.sampled_from(_kinds(place)))
    return kind(draw, place)


def _kinds(place: _Place) -> list[NodeKind]:
    """Return what may be drawn here, simplest first.

    The list begins alike at every depth, which helps shrinking.
    """
    kinds = [
        kind
        for kind, *features in (*_LEAVES, *(_NESTED if place.may_nest else ()))
        if not place.profile.features.isdisjoint(features)
    ]
    # Prefer objects, above all at the root: most requests for structured output ask for one.
    if _object in kinds:
        kinds += [_object] * (8 if place.depth == 0 else 2)
    return kinds


def maybe(draw: Draw, allowed: bool = True) -> bool:
    """Draw a boolean that shrinks to False. Draw nothing if True is not allowed."""
    return allowed and bool(draw(st.booleans()))


def _null(draw: Draw, place: _Place) -> Schema:
    return {"type": "null"}


def _boolean(draw: Draw, place: _Place) -> Schema:
    return {"type": "boolean"}


def _numeric(
    kind: str,
    factors: tuple[float, ...],
    unit: float,
    most: int,
    gaps: st.SearchStrategy[float],
    draw: Draw,
    place: _Place,
) -> Schema:
    """Draw a number's schema. Bounds lie around a multiple of ``unit``, or of ``multipleOf``, which
    remains an instance."""
    schema: Schema = {"type": kind}
    may_have_bounds = Feature.BOUNDS in place or Feature.EXCLUSIVE_BOUNDS in place
    if maybe(draw, Feature.MULTIPLE_OF in place):
        unit = schema["multipleOf"] = draw(st.sampled_from(factors))
    if not maybe(draw, may_have_bounds):
        return schema
    inside = unit * draw(st.integers(-most, most))
    for side, sign in (("inimum", -1), ("aximum", 1)):
        if maybe(draw, may_have_bounds):
            gap = draw(gaps)
            may_exclude = Feature.EXCLUSIVE_BOUNDS in place and gap > 0
            if may_exclude or Feature.BOUNDS in place:
                exclusive = may_exclude and (Feature.BOUNDS not in place or maybe(draw))
                schema[("exclusiveM" if exclusive else "m") + side] = inside + sign * gap
    return schema


_QUARTERS = st.integers(0, 200).map(lambda quarters: quarters / 4)
_integer = partial(_numeric, "integer", (2, 3, 5, 10), 1, 50, st.integers(0, 120))
_number = partial(_numeric, "number", (0.5, 0.25, 2, 1.5), 0.25, 40, _QUARTERS)


def _string(draw: Draw, place: _Place) -> Schema:
    schema: Schema = {"type": "string"}
    shortest, longest = 0, None
    if maybe(draw, Feature.PATTERN in place):
        shape = draw(st.sampled_from(SHAPES))
        schema["pattern"] = shape.pattern
        shortest, longest = shape.shortest, shape.longest
        if Feature.PATTERN_LENGTH not in place:
            return schema
    elif maybe(draw, Feature.FORMAT in place):
        return {**schema, "format": draw(st.sampled_from(TABLES["formats"]))}
    if Feature.LENGTH in place:
        # An instance of this length always exists.
        length = draw(st.integers(shortest, shortest + 4 if longest is None else longest))
        if maybe(draw):
            schema["minLength"] = draw(st.integers(0, length))
        if maybe(draw):
            schema["maxLength"] = length + draw(st.integers(0, 6))
    return schema


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _values() -> st.SearchStrategy[Any]:
    """Return a strategy for values of an enum or const.

    Floats are never whole numbers, so that 1 and 1.0 never both appear.
    """
    words = st.sampled_from(TABLES["words"] + TABLES["awkward-words"])
    scalars = (
        st.none() | st.booleans() | st.integers(-20, 20) | st.sampled_from((0.5, -1.25)) | words
    )
    return (
        scalars
        | st.lists(scalars, max_size=2)
        | st.dictionaries(st.sampled_from(TABLES["words"]), scalars, max_size=2)
    )


def _enum(draw: Draw, place: _Place) -> Schema:
    kinds = []
    if Feature.ENUM in place:
        kinds += [st.sampled_from(TABLES["words"]), st.integers(-20, 20)]
    if Feature.ENUM_MIXED in place:
        kinds.append(_values())
    kind = kinds[draw(st.integers(0, len(kinds) - 1))]
    members = draw(st.lists(kind, min_size=1, max_size=place.budget.width, unique_by=_key))
    schema: Schema = {"enum": members}
    if (
        isinstance(members[0], str)
        and all(isinstance(member, str) for member in members)
        and maybe(draw)
    ):
        schema = {"type": "string", **schema}
    return schema


def _const(draw: Draw, place: _Place) -> Schema:
    if Feature.CONST_ANY in place and (Feature.CONST not in place or maybe(draw)):
        return {"const": draw(_values())}
    return {"const": draw(st.sampled_from(TABLES["words"]))}


def _type_list(draw: Draw, place: _Place) -> Schema:
    """Draw a union of plain types, never of both number and integer."""
    features = (Feature.NULL, Feature.BOOLEAN, Feature.INTEGER, Feature.STRING)
    names = [feature.value for feature in features if feature in place]
    return {"type": draw(st.lists(st.sampled_from(names), min_size=2, max_size=3, unique=True))}


def _any(draw: Draw, place: _Place) -> Schema:
    return {}


def _recursion(draw: Draw, place: _Place) -> Schema:
    """Draw a reference to a definition around this place; the simplest kind if there is none."""
    targets = [
        name
        for name in place.reachable
        if name in place.entered and (name != "#" or Feature.ROOT_REF in place)
    ]
    if not targets:
        return _kinds(place)[0](draw, place)
    return {"$ref": _pointer(place.profile, draw(st.sampled_from(targets)))}


def _array(draw: Draw, place: _Place) -> Schema:
    schema: Schema = {"type": "array"}
    at_least = 0
    if maybe(
        draw
    ):  # one boolean before the others, so that a plain array is the simplest container to draw
        if Feature.ITEM_COUNT in place:
            if maybe(draw):
                at_least = schema["minItems"] = draw(st.integers(0, 3))
            if maybe(draw):
                schema["maxItems"] = at_least + draw(st.integers(0, 3))
        if at_least <= 1 and maybe(draw, Feature.UNIQUE_ITEMS in place):
            schema["uniqueItems"] = True
    schema["items"] = draw(_node(place.deeper(guarded=at_least == 0, inside=True)))
    return schema


def _tuple(draw: Draw, place: _Place) -> Schema:
    count = draw(st.integers(1, place.budget.width))
    is_draft_7 = place.profile.dialect is Dialect.DRAFT7
    first, further = ("items", "additionalItems") if is_draft_7 else ("prefixItems", "items")
    schema: Schema = {
        "type": "array",
        first: [draw(_node(place.deeper(inside=True))) for _ in range(count)],
    }
    if maybe(draw):
        schema[further] = False
    if maybe(draw, Feature.ITEM_COUNT in place):
        schema["minItems"] = count
    return schema


def _object(draw: Draw, place: _Place) -> Schema:
    if maybe(draw, Feature.DICTIONARY in place):
        return {
            "type": "object",
            "additionalProperties": draw(_node(place.deeper(guarded=True, inside=True))),
        }
    candidates = [
        *PLAIN_NAMES,
        *(TABLES["unicode-names"] if Feature.UNICODE_NAMES in place else ()),
        *(TABLES["escaped-names"] if Feature.ESCAPED_NAMES in place else ()),
    ]
    most = max(0, min(place.budget.width, place.state.left))
    schema: Schema = {"type": "object", "properties": {}}
    required: list[str] = []
    for name in draw(st.lists(st.sampled_from(candidates), max_size=most, unique=True)):
        optional = maybe(draw, Feature.OPTIONAL in place)  # such a property is a guard
        node = draw(_node(place.deeper(guarded=optional, inside=True)))
        schema["properties"][name] = node
        if not optional:
            required.append(name)
    if required:
        schema["required"] = required
    if maybe(draw):
        _decorate(draw, place, schema)
    return schema


def _decorate(draw: Draw, place: _Place, schema: Schema) -> None:
    """Add an object's keywords other than its declared properties."""
    required = len(schema.get("required", []))
    if maybe(draw, Feature.CLOSED in place):
        schema["additionalProperties"] = False
    elif maybe(draw, Feature.ADDITIONAL in place):
        schema["additionalProperties"] = draw(_node(place.deeper(guarded=True, inside=True)))
    if Feature.PROPERTY_COUNT in place:
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
    # A backend that merges only objects does so here as well.
    if Feature.ALL_OF_SPLIT not in place or maybe(draw):
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
        {"const": PLAIN_NAMES[index]} if Feature.CONST in place else {"enum": [PLAIN_NAMES[index]]}
    )
    return {
        "type": "object",
        "properties": {DISCRIMINATOR: tag, **variant["properties"]},  # no property has its name
        "required": [DISCRIMINATOR, *variant.get("required", [])],
    }


def _all_of(draw: Draw, place: _Place) -> Schema:
    """Draw two open objects with different property names, which never contradict each other."""
    first, second = (_open_object(draw, place, name) for name in PLAIN_NAMES[:2])
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
    prefix = "d/" if maybe(draw, Feature.ESCAPED_NAMES in place) else "d"
    name = f"{prefix}{len(state.definitions)}"
    state.definitions[name] = None  # unfinished: only usable behind a guard
    # Nothing is reachable at first: the definition is finite wherever it is used only if the guard
    # is inside it.
    inner = replace(place.deeper(), open_names=(*place.open_names, name), reachable=(), entered=())
    state.definitions[name] = draw(_node(inner))
    return {"$ref": _pointer(place.profile, name)}


_LEAVES: NodeKinds = (
    (_boolean, Feature.BOOLEAN),
    (_null, Feature.NULL),
    (_integer, Feature.INTEGER),
    (_number, Feature.NUMBER),
    (_string, Feature.STRING),
    (_const, Feature.CONST, Feature.CONST_ANY),
    (_type_list, Feature.TYPE_LIST),
    (_enum, Feature.ENUM, Feature.ENUM_MIXED),
    (_any, Feature.ANY),
    (_recursion, Feature.RECURSION),
)
_NESTED: NodeKinds = (
    (_array, Feature.ARRAY),
    (_object, Feature.OBJECT),
    (_any_of, Feature.ANY_OF),
    (_one_of, Feature.ONE_OF),
    (_all_of, Feature.ALL_OF),
    (_ref, Feature.REF),
    (_tuple, Feature.TUPLE),
    (_all_of_split, Feature.ALL_OF_SPLIT),
)
"""What can be drawn, simplest first, and the features of which one allows it."""


def _pointer(profile: Profile, name: str) -> str:
    if name == "#":
        return "#"
    return f"#/{_definitions_key(profile)}/" + name.replace("~", "~0").replace("/", "~1")


def _definitions_key(profile: Profile) -> str:
    return "definitions" if profile.dialect is Dialect.DRAFT7 else "$defs"


def _contradict(draw: Draw, schema: Schema) -> Schema:
    """Return an unsatisfiable schema: a contradiction alone, combined with ``schema``, or as one of
    its required properties."""
    plain: Schema = dict(draw(st.sampled_from(TABLES["contradictions"])))
    way = draw(st.integers(0, 2))
    if way == 0:
        return plain
    if way == 1 or schema.get("type") != "object" or "properties" not in schema:
        return {"allOf": [schema, plain]}
    properties: dict[str, Any] = {**schema["properties"], "never": plain}
    return {**schema, "properties": properties, "required": [*schema.get("required", []), "never"]}


@st.composite
def _root(draw: Draw, profile: Profile, budget: Budget, satisfiable: bool) -> Schema:
    state = _State(left=budget.nodes)
    schema: Schema = draw(_node(_Place(profile, budget, state)))
    if not satisfiable and maybe(draw):
        schema = _contradict(draw, schema)
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
    return _root(
        as_profile(profile),
        budget if isinstance(budget, Budget) else Budget(nodes=budget),
        satisfiable,
    )
