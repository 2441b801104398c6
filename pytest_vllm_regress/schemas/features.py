"""Find the features a schema uses, and count how often drawn schemas use each feature."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .drawing import draw_all
from .profile import TABLES, Budget, Feature, Profile
from .strategies import json_schemas

_KEYWORDS = {Feature(name): frozenset(keys) for name, keys in TABLES["keywords"].items()}
DEFINITIONS = ("$defs", "definitions")
_SINGLE_SUBSCHEMA = ("items", "additionalItems", "additionalProperties", "not")
_SUBSCHEMA_LISTS = ("items", "prefixItems", "anyOf", "oneOf", "allOf")


def children(schema: Any) -> Iterator[Any]:
    """Yield the direct subschemas of a schema, without shared definitions."""
    if not isinstance(schema, Mapping):
        return
    yield from schema.get("properties", {}).values()
    for key in _SINGLE_SUBSCHEMA:
        if isinstance(schema.get(key), Mapping | bool):
            yield schema[key]
    for key in _SUBSCHEMA_LISTS:
        if isinstance(schema.get(key), list):
            yield from schema[key]


def walk(schema: Any) -> Iterator[Any]:
    """Yield the schema and all schemas nested in it, without shared definitions."""
    yield schema
    for child in children(schema):
        yield from walk(child)


def definitions(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the root (``#``) and the shared definitions, keyed by the pointer that refers to each."""
    definitions_by_pointer: dict[str, Any] = {"#": schema}
    for key in DEFINITIONS:
        for name, body in schema.get(key, {}).items():
            definitions_by_pointer[f"#/{key}/" + name.replace("~", "~0").replace("/", "~1")] = body
    return definitions_by_pointer


def _refs(schema: Any) -> set[str]:
    return {node["$ref"] for node in walk(schema) if isinstance(node, Mapping) and "$ref" in node}


def _recursive(parts: Mapping[str, Any]) -> bool:
    reachable = {name: _refs(body) for name, body in parts.items()}
    for _ in reachable:
        reachable = {
            name: targets.union(*(reachable.get(target, set()) for target in targets))
            for name, targets in reachable.items()
        }
    return any(name in targets for name, targets in reachable.items())


def _value_features(node: Mapping[str, Any]) -> Iterator[Feature]:
    if "enum" in node:
        plain = all(isinstance(v, str) for v in node["enum"]) or all(
            type(v) in (int, float) for v in node["enum"]
        )
        yield Feature.ENUM if plain else Feature.ENUM_MIXED
    if "const" in node:
        yield Feature.CONST if isinstance(node["const"], str) else Feature.CONST_ANY


def _object_features(node: Mapping[str, Any]) -> Iterator[Feature]:
    properties, additional = node.get("properties", {}), node.get("additionalProperties")
    if set(properties) - set(node.get("required", [])):
        yield Feature.OPTIONAL
    if additional is False:
        yield Feature.CLOSED
    elif additional is not None:
        yield Feature.ADDITIONAL if "properties" in node else Feature.DICTIONARY
    for name in properties:
        if not name.isascii():
            yield Feature.UNICODE_NAMES
        if (
            not name
            or json.dumps(name, ensure_ascii=False) != f'"{name}"'
            or set(name) & set("/~%")
        ):
            yield Feature.ESCAPED_NAMES


def _node_features(node: Any) -> Iterator[Feature]:
    if node is True or node == {}:
        yield Feature.ANY
    if not isinstance(node, Mapping):
        return
    types = node.get("type", [])
    if isinstance(types, list) and types:
        yield Feature.TYPE_LIST
    for name in [types] if isinstance(types, str) else types:
        yield Feature(name)
    for feature, keys in _KEYWORDS.items():
        if keys & node.keys():
            yield feature
    if "pattern" in node and {"minLength", "maxLength"} & node.keys():
        yield Feature.PATTERN_LENGTH
    if isinstance(node.get("items"), list):
        yield Feature.TUPLE
    if len(parts := node.get("allOf", [])) > 1:
        objects = all(isinstance(part, Mapping) and part.get("type") == "object" for part in parts)
        yield Feature.ALL_OF if objects else Feature.ALL_OF_SPLIT
    yield from _value_features(node)
    yield from _object_features(node)


def _is_container(node: Any) -> bool:
    return isinstance(node, Mapping) and node.get("type") in ("array", "object")


def features(schema: Any) -> frozenset[str]:
    """Return the names (``Feature`` values) of all features the schema uses."""
    parts = definitions(schema) if isinstance(schema, Mapping) else {"#": schema}
    used: set[Feature] = set()
    for pointer, part in parts.items():
        if pointer != "#" and ("~" in pointer or "%" in pointer):
            used.add(Feature.ESCAPED_NAMES)
        refs = _refs(part)
        used |= {Feature.ROOT_REF} if "#" in refs else set()
        used |= {Feature.REF} if refs - {"#"} else set()
        for node in walk(part):
            used.update(_node_features(node))
            if _is_container(node) and any(
                _is_container(below) for child in children(node) for below in walk(child)
            ):
                used.add(Feature.NESTING)
    if _recursive(parts):
        used.add(Feature.RECURSION)
    return frozenset(feature.value for feature in used)


def sample(
    count: int,
    *,
    profile: Profile | str = "full",
    budget: Budget | int = Budget(),  # noqa: B008  # frozen
    seed_value: int = 0,
) -> list[dict[str, Any]]:
    """Return at most ``count`` schemas.

    The same seed and Hypothesis release give the same schemas.
    """
    return draw_all(json_schemas(profile, budget), count, seed_value)[:count]


@dataclass(frozen=True)
class Distribution:
    """Number of schemas (of ``total``) that use each feature, and the size of each schema in
    subschemas."""

    total: int
    counts: Mapping[str, int]
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        middle = sorted(self.sizes)[len(self.sizes) // 2] if self.sizes else 0
        lines = [
            f"{self.total} schemas, subschemas: median {middle}, maximum {max(self.sizes, default=0)}"
        ]
        for feature in Feature:
            count = self.counts.get(feature.value, 0)
            share = count / self.total if self.total else 0
            lines.append(
                f"{feature.value:20} {count:6} {share:6.1%} {'#' * round(40 * share)}".rstrip()
            )
        return "\n".join(lines)


def distribution(
    count: int = 200,
    *,
    profile: Profile | str = "full",
    budget: Budget | int = Budget(),  # noqa: B008 (frozen)
    seed_value: int = 0,
) -> Distribution:
    """Draw ``count`` schemas and count their features.

    Print the result to see what a profile and a budget produce.
    """
    drawn = sample(count, profile=profile, budget=budget, seed_value=seed_value)
    counts = Counter(name for schema in drawn for name in features(schema))
    sizes = tuple(
        sum(1 for part in definitions(schema).values() for _ in walk(part)) for schema in drawn
    )
    return Distribution(len(drawn), dict(counts), sizes)
