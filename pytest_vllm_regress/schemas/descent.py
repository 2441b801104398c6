"""Values of an unrolled schema: the structure is descended here, what has no subschemas is drawn by ``leaves``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from pytest_vllm_regress.schemas.leaves import ANYTHING, leaf
from pytest_vllm_regress.schemas.unroll import CLOSED

ROOM = 3
"""At most this many items, or surplus properties, more than a schema asks for."""

_NAMES = ("a", "key", "surplus", "x y", "\u00fc", "0")


def values_of(schema: Any) -> st.SearchStrategy[Any]:
    """Values that should satisfy an unrolled schema; nothing where it has none. The caller filters."""
    if isinstance(schema, bool):
        return ANYTHING if schema else st.nothing()
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            rest = {k: v for k, v in schema.items() if k != key}
            return st.one_of([values_of(_merge([rest, branch]) if rest else branch) for branch in schema[key]])
    if "allOf" in schema:
        return values_of(_merge([{k: v for k, v in schema.items() if k != "allOf"}, *schema["allOf"]]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return st.one_of([values_of({**schema, "type": name}) for name in kind])
    if kind == "object":
        return _objects(schema)
    if kind == "array":
        return _arrays(schema)
    return leaf(schema)


def _merge(parts: list[Any]) -> Any:
    """One schema for all parts. Keywords of one name meet only in parts that say the same or declare properties."""
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
    if nested and any(nested_part.keys() & merged.keys() for nested_part in nested if isinstance(nested_part, Mapping)):
        return {"not": {}} if merged.get("type") in ("object", "array") else False
    return _merge([merged, *nested]) if nested else merged


def _objects(schema: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    drawn = {name: values_of(body) for name, body in schema.get("properties", {}).items()}
    required = list(dict.fromkeys(schema.get("required", [])))
    must = {name: drawn.get(name, ANYTHING) for name in required}
    may = {name: strategy for name, strategy in drawn.items() if name not in must and not strategy.is_empty}
    more = schema.get("additionalProperties", CLOSED not in schema)
    least, most = schema.get("minProperties", 0), schema.get("maxProperties", len(drawn) + len(must) + ROOM)
    surplus = values_of(more)
    names = [name for name in _NAMES if name not in drawn and name not in must]
    room = 0 if surplus.is_empty else min(ROOM, most - len(must), len(names))
    # Some backends write properties in the order of the schema only.
    order = {name: at for at, name in enumerate(dict.fromkeys((*drawn, *required, *_NAMES)))}
    declared = st.fixed_dictionaries(must, optional=may).map(
        lambda value: dict(sorted(value.items(), key=lambda item: order[item[0]]))
    )
    if room <= 0:
        return declared.filter(lambda value: least <= len(value) <= most)
    extra = st.dictionaries(st.sampled_from(names), surplus, max_size=room)
    # The declared part wins a place first: a surplus may have to give way to maxProperties.
    return st.builds(lambda known, other: dict(list({**known, **other}.items())[:most]), declared, extra).filter(
        lambda value: least <= len(value)
    )


def _arrays(schema: Mapping[str, Any]) -> st.SearchStrategy[list[Any]]:
    items = schema.get("items", True)
    least = schema.get("minItems", 0)
    most = schema.get("maxItems")
    if isinstance(items, list):
        return _tuples(items, schema.get("additionalItems", True), least, most)
    item = values_of(items)
    if most is not None and most < least:
        return st.nothing()
    if item.is_empty:
        return st.just([])
    size = least + ROOM if most is None else min(most, least + ROOM)
    unique = (lambda value: json.dumps(value, sort_keys=True)) if schema.get("uniqueItems") else None
    drawn = st.lists(item, min_size=least, max_size=size, unique_by=unique)
    try:
        drawn.validate()
    except InvalidArgument:  # more different items asked for than there are
        return st.nothing()
    return drawn


def _tuples(items: list[Any], more: Any, least: int, most: int | None) -> st.SearchStrategy[list[Any]]:
    drawn = [values_of(item) for item in items]
    rest = values_of(more)
    longest = len(items) + (0 if rest.is_empty else ROOM)
    top = longest if most is None else min(most, longest)

    def of_length(count: int) -> st.SearchStrategy[list[Any]]:
        parts = [*drawn, *([rest] * max(0, count - len(drawn)))][:count]
        return st.tuples(*parts).map(list)

    return st.integers(least, top).flatmap(of_length) if least <= top else st.nothing()
