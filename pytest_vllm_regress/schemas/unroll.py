"""Replace references by the schemas they point to.

Recursion is followed a few levels deep and then cut where an instance may leave it out. The result
accepts a subset of what the schema accepts. Its dialect is draft 7, which ``composites`` reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pytest_vllm_regress.schemas.features import DEFINITIONS, definitions

NEVER = False
CLOSED = "x-closed"
"""Marks an object that accepts only the properties declared in any part of its allOf.

Draft 7 has no keyword for that.
"""


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
