"""Strategies for values of an unrolled schema: objects, arrays and combinators.

``primitives`` draws the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from pytest_vllm_regress.schemas.primitives import ANYTHING, primitive_values
from pytest_vllm_regress.schemas.unroll import CLOSED

MAX_EXTRA = 3
"""Maximum number of items, or undeclared properties, beyond what a schema requires."""

_NAMES = ("a", "key", "surplus", "x y", "\u00fc", "0")


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
