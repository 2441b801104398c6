"""What a server says of its own API: its operations and the fields of their bodies, from its
OpenAPI description."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .api_request import FORM, JSON
from .servers import NOT_ASKED

Path = tuple[str | int, ...]
"""Where a field is in a body."""
_DEPTH = 3
_MAX_FIELDS = 400


@dataclass(frozen=True)
class Operation:
    """One method of one route.

    Attributes:
        content: how its body is sent; empty if it has none.
        schema: JSON schema of the body; empty if the description has none.
        parameters: names of its path and query parameters, each with its place.
    """

    method: str
    route: str
    content: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)
    parameters: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        return f"{self.method} {self.route}"


def operations(document: Mapping[str, Any]) -> list[Operation]:
    """Return the operations of a description, sorted. Those in ``NOT_ASKED`` are left out."""
    result = []
    for route, methods in sorted(document.get("paths", {}).items()):
        for method, operation in sorted(methods.items()):
            if route not in NOT_ASKED and method in ("get", "post", "put", "delete"):
                result.append(_operation(method.upper(), route, operation))
    return result


def _operation(method: str, route: str, operation: Mapping[str, Any]) -> Operation:
    contents = operation.get("requestBody", {}).get("content", {})
    forms = [name for name in contents if "form" in name]
    content = FORM if forms else JSON if contents or method == "POST" else ""
    media = contents.get(forms[0] if forms else "application/json", {})
    parameters = tuple(
        (str(one["name"]), str(one["in"]))
        for one in operation.get("parameters", [])
        if one.get("in") != "header"
    )
    return Operation(method, route, content, media.get("schema", {}), parameters)


def fields(document: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[Path, Mapping[str, Any]]:
    """Return the fields of a body's schema by their paths, those of nested objects and of the first
    items of lists included."""
    found: dict[Path, Mapping[str, Any]] = {}
    level: list[tuple[Path, Any]] = [((), schema)]
    for _ in range(_DEPTH):
        level = [
            child
            for path, part in level
            for node in _alternatives(document, part)
            for child in _children(path, node)
        ]
        for path, node in level:
            found.setdefault(path, node if isinstance(node, Mapping) else {})
    return dict(itertools.islice(found.items(), _MAX_FIELDS))


def _children(path: Path, node: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    yield from (((*path, str(name)), child) for name, child in node.get("properties", {}).items())
    if isinstance(node.get("items"), Mapping):
        yield (*path, 0), node["items"]


def _alternatives(
    document: Mapping[str, Any], schema: Any, left: int = 4
) -> list[Mapping[str, Any]]:
    """Return the schema, or what it refers to and its alternatives."""
    if not isinstance(schema, Mapping) or not left:
        return []
    if isinstance(name := schema.get("$ref"), str):
        return _alternatives(
            document,
            document.get("components", {}).get("schemas", {}).get(name.rpartition("/")[2]),
            left - 1,
        )
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list):
            return [one for part in schema[key] for one in _alternatives(document, part, left - 1)]
    return [schema]


def closed_schema(document: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object schema with the fields of a body and no others, none of them required."""
    properties: dict[str, Any] = {}
    for one in _alternatives(document, schema):
        properties |= one.get("properties", {})
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "minProperties": 1,
    }
