"""Make schemas that no value satisfies, with mistakes that people really make."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from pytest_vllm_regress.schemas.scalars import Draw, Schema

_PLAIN: tuple[Schema, ...] = (
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"type": "integer", "minimum": 5, "maximum": 4},
    {"type": "integer", "minimum": 1, "maximum": 4, "multipleOf": 5},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 0},
    {"type": "string", "enum": [1]},
    {"type": "string", "pattern": "^[0-9]{3}$", "maxLength": 2},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"type": "array", "items": {"enum": ["a"]}, "uniqueItems": True, "minItems": 2},
    {"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 1},
    {"type": "object", "properties": {"a": False}, "required": ["a"]},
    {"oneOf": [{"type": "null"}, {"type": "null"}]},
    {"not": {}},
)


def contradict(draw: Draw, schema: Schema) -> Schema:
    """Return an unsatisfiable schema: a contradiction alone, combined with ``schema``, or as one of
    its required properties."""
    plain: Schema = dict(draw(st.sampled_from(_PLAIN)))
    way = draw(st.integers(0, 2))
    if way == 0:
        return plain
    if way == 1 or schema.get("type") != "object" or "properties" not in schema:
        return {"allOf": [schema, plain]}
    properties: dict[str, Any] = {**schema["properties"], "never": plain}
    return {**schema, "properties": properties, "required": [*schema.get("required", []), "never"]}
