"""A schema without references: recursion followed a few rounds, then cut where an instance may leave it out.

The result accepts a subset of what the schema accepts, and is in the older spelling that ``descent`` reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pytest_vllm_regress.schemas.features import DEFINITIONS, definitions

NEVER = False
CLOSED = "x-closed"
"""Marks an object that takes declared properties only, those of all its parts: no keyword of draft 7 says so across the parts of an allOf."""


def unroll(schema: Mapping[str, Any], rounds: int = 2, *, extras: bool = True) -> Any:
    """``rounds`` is how often one definition may stand inside itself. With ``extras`` false, objects that declare
    properties take no other ones: some backends write declared properties only."""
    return _Unroll(definitions(schema), rounds, extras).part(schema, Counter({"#": 1}))


class _Unroll:
    def __init__(self, parts: Mapping[str, Any], rounds: int, extras: bool) -> None:
        self.parts, self.rounds, self.extras = parts, rounds, extras

    def part(self, schema: Any, inside: Counter[str]) -> Any:
        if isinstance(schema, bool):
            return schema
        if "$ref" in schema:
            pointer = schema["$ref"]
            if inside[pointer] >= self.rounds:
                return NEVER
            return self.part(self.parts[pointer], inside + Counter({pointer: 1}))
        out: Any = {key: value for key, value in schema.items() if key not in DEFINITIONS}
        for rewrite in (self._alternatives, self._conjunction, self._array, self._object):
            if out is not NEVER:
                out = rewrite(out, inside)
        return out

    def _alternatives(self, schema: dict[str, Any], inside: Counter[str]) -> Any:
        for key in {"anyOf", "oneOf"} & schema.keys():
            kept = [done for branch in schema[key] if (done := self.part(branch, inside)) is not NEVER]
            if not kept:
                return NEVER
            schema[key] = kept
        return schema

    def _conjunction(self, schema: dict[str, Any], inside: Counter[str]) -> Any:
        if "allOf" in schema:
            schema["allOf"] = [self.part(branch, inside) for branch in schema["allOf"]]
            if NEVER in [branch for branch in schema["allOf"] if isinstance(branch, bool)]:
                return NEVER
        return schema

    def _array(self, schema: dict[str, Any], inside: Counter[str]) -> Any:
        first = schema.pop("prefixItems", None)
        rest = schema.pop("items", None)
        if isinstance(rest, list):
            first, rest = rest, schema.pop("additionalItems", None)
        least = schema.get("minItems", 0)
        if first is not None:
            first = [self.part(item, inside) for item in first]
            # A tuple may be cut short of an item that cannot be.
            usable = next((i for i, item in enumerate(first) if item is NEVER), len(first))
            schema["items"] = first[:usable]
            if usable < len(first):
                schema["maxItems"] = usable
            if rest is not None:
                schema["additionalItems"] = self.part(rest, inside)
            elif not self.extras:
                schema["additionalItems"] = False
            return NEVER if least > usable < len(first) else schema
        if rest is not None:
            schema["items"] = self.part(rest, inside)
            if schema["items"] is NEVER:
                if least > 0:
                    return NEVER
                schema.pop("items")
                schema["maxItems"] = 0
        return schema

    def _object(self, schema: dict[str, Any], inside: Counter[str]) -> Any:
        if "properties" in schema:
            done = {name: self.part(body, inside) for name, body in schema["properties"].items()}
            if any(done.get(name) is NEVER for name in schema.get("required", [])):
                return NEVER
            schema["properties"] = done
            if not self.extras and "additionalProperties" not in schema:
                schema[CLOSED] = True
        if "additionalProperties" in schema:
            schema["additionalProperties"] = self.part(schema["additionalProperties"], inside)
        return schema
