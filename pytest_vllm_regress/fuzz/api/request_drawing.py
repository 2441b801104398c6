"""The operations that a server describes (OpenAPI), and the questions of one operation: a sweep that
sets each field to each value once, and drawn bodies of which a few fields are taken over.

Fields are changed in valid requests (``data/fuzz/requests.json``), because drawn bodies alone are
nearly always refused. Everything is drawn from the seed and the number of the round, never from
time.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from ...errors import UsageError
from ..drawing import drawn, drawn_data
from .api_request import FORM, JSON, ApiRequest
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


_ODD = drawn_data("odd_values")


def _nested(depth: int, kind: type) -> Any:
    """Return an empty list or object inside others."""
    value: Any = kind()
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


VALUES: tuple[Any, ...] = (
    *_ODD["plain"],
    *_ODD["numbers"],
    *(text.replace("{long}", "a" * 20_000) for text in _ODD["texts"]),
    _nested(200, list),
    _nested(200, dict),
)
"""What every field is set to once."""
BODIES = (*_ODD["bodies"], "[" * 2000 + "]" * 2000)
"""Texts of whole bodies."""
PARAMETERS = (*_ODD["parameters"], "a" * 2000)
"""Values of parameters in a path or query, already quoted."""


def of_type(schema: Mapping[str, Any]) -> list[Any]:
    """Return values of a field's own type, which are more often accepted: members of enumerations,
    and plain ones."""
    values = list(schema.get("enum", []))[:8]
    values += [schema["const"]] if "const" in schema else []
    alternatives = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    for part in (schema, *(one for one in alternatives if isinstance(one, Mapping))):
        if part.get("type") == "array":
            items = part.get("items")
            of_items = of_type(items)[:3] if isinstance(items, Mapping) else []
            values += ([value, value] for value in of_items)
        else:
            values += _OF_TYPE.get(part.get("type", ""), [])
            values += part["enum"][:8] if isinstance(part.get("enum"), list) else []
    return values


_OF_TYPE: Mapping[str, list[Any]] = {
    "boolean": [True, False],
    "integer": [0, 1, 2, 5, 100],
    "number": [0, 0.5, 1, 2],
    "string": ["a", "Hi"],
    "object": [{}, {"a": 1}],
}


DRAWN_SHARE = 4
"""One of so many questions of a round is drawn."""
FIELDS_A_ROUND = 8
"""Number of fields of a body that schemathesis draws in a round.

Whole bodies, of up to eighty fields, take ten times as long.
"""
Body = Mapping[str, Any]


@functools.cache
def _bodies_of(server: str) -> tuple[Mapping[str, list[Body]], Mapping[str, str]]:
    """Return valid bodies by route for a kind of server, and routes that are others' aliases."""
    document = drawn_data("requests")
    servers = document["servers"]
    text = json.dumps(servers.get(server, servers["pooling"]))
    own = json.loads(text.replace("{image}", document["image"]))
    return own, {} if server in servers else document["aliases"]


def bases_of(server: str, route: str) -> Sequence[Body]:
    """Return valid bodies for a route of a kind of server, the simplest first; empty if none are
    known."""
    bodies, aliases = _bodies_of(server)
    return bodies.get(aliases.get(route, route), ())


def routes_of(server: str) -> Sequence[str] | None:
    """Return the routes that a kind of server is asked at; None for all."""
    bodies, aliases = _bodies_of(server)
    return None if server == "text" else (*bodies, *aliases)


@dataclass(frozen=True)
class RequestDrawer:
    """Draws questions for the operations of one server's description."""

    server: str
    document: Mapping[str, Any]

    def questions(
        self, operation: Operation, seed: int, number: int, count: int
    ) -> list[ApiRequest]:
        """Return at most ``count`` questions of a round; empty if there are no more.

        In round 0 the valid requests come first.
        """
        sweep = self._shuffled(operation, random.Random(f"{seed} {self.server} {operation.label}"))
        share = count - count // DRAWN_SHARE
        swept = sweep[number * share : (number + 1) * share]
        valid: list[ApiRequest] = []
        if operation.schema and operation.content != FORM:
            valid = self._drawn(operation, seed * 1000 + number, count - len(swept))
        bases = () if number else bases_of(self.server, operation.route)
        plain = [self._question(operation, json.dumps(base)) for base in bases]
        return list(dict.fromkeys([*plain, *swept, *valid]))

    def _question(self, operation: Operation, body: str | None, **values: str) -> ApiRequest:
        return ApiRequest(
            self.server,  # type: ignore[arg-type]  # one of SERVERS
            operation.method,  # type: ignore[arg-type]  # one of those that ``operations`` takes
            _filled(operation, values),
            operation.route,
            body,
            operation.content or JSON,  # type: ignore[arg-type]
        )

    def _shuffled(self, operation: Operation, generator: random.Random) -> list[ApiRequest]:
        """Return the sweep with one value of each field after the other, so that every field is
        changed early."""
        groups = [list(group) for group in self._sweep(operation)]
        generator.shuffle(groups)
        for group in groups:
            generator.shuffle(group)
        passes = itertools.chain.from_iterable(itertools.zip_longest(*groups))
        return list(dict.fromkeys(question for question in passes if question is not None))

    def _sweep(self, operation: Operation) -> Iterator[Iterator[ApiRequest]]:
        """Yield the questions about each field, about parameters, and about whole bodies."""
        yield self._parameters(operation)
        if not operation.content:
            return
        if operation.content != FORM:
            yield (self._question(operation, text) for text in BODIES)
        bases = bases_of(self.server, operation.route) or [{}]
        described = fields(self.document, operation.schema)
        owners: dict[Path, Body] = {}
        for base in bases:
            owners = dict.fromkeys(paths(base), base) | owners
        for path in dict.fromkeys((*owners, *described)):
            values = (*VALUES, *of_type(described.get(path, {})))
            base = owners.get(path, bases[0])
            changed = (with_field(base, path, value) for value in values)
            bodies = itertools.chain((without_field(base, path),), changed)
            yield (self._question(operation, json.dumps(body)) for body in bodies)

    def _parameters(self, operation: Operation) -> Iterator[ApiRequest]:
        body = None
        if operation.content:
            body = json.dumps(next(iter(bases_of(self.server, operation.route)), {}))
        else:
            yield self._question(operation, None)
        for name, _ in operation.parameters:
            for value in PARAMETERS:
                yield self._question(operation, body, **{name: value})

    def _drawn(self, operation: Operation, seed: int, count: int) -> list[ApiRequest]:
        """Return valid requests with several changes: fields of bodies that schemathesis draws,
        values of their own types, and one odd value.

        With more odd values nearly every request is refused.
        """
        bases = bases_of(self.server, operation.route) or ({},)
        closed = closed_schema(self.document, operation.schema)
        names = sorted(closed["properties"])
        chosen = random.Random(seed).sample(names, min(FIELDS_A_ROUND, len(names)))
        properties = {name: closed["properties"][name] for name in chosen}
        bodies = _bodies(self.document, {**closed, "properties": properties})
        known = list(fields(self.document, operation.schema).items())

        @st.composite
        def requests(draw: st.DrawFn) -> ApiRequest:
            body: Any = dict(draw(st.sampled_from(bases)))
            if draw(st.booleans()) and (extra := draw(bodies)):
                some = st.lists(st.sampled_from(sorted(extra)), max_size=2, unique=True)
                for name in draw(some):
                    body = with_field(body, (name,), extra[name])
            for path, schema in draw(st.lists(st.sampled_from(known), max_size=4)) if known else []:
                if plain := of_type(schema):
                    body = with_field(body, path, draw(st.sampled_from(plain)))
            if draw(st.booleans()) and known:
                path = draw(st.sampled_from(known))[0]
                body = with_field(body, path, draw(st.sampled_from(VALUES)))
            return self._question(operation, json.dumps(body))

        return drawn(requests(), count, seed)[:count]


def _bodies(document: Mapping[str, Any], schema: Body) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for bodies of a schema.

    Schemathesis draws them, with what the schema refers to in the server's description.
    """
    try:
        import schemathesis
    except ImportError:
        raise UsageError(
            "fuzz api needs schemathesis: install pytest-vllm-regress[fuzz-api]"
        ) from None
    content = {"required": True, "content": {"application/json": {"schema": schema}}}
    described = {
        "openapi": document.get("openapi", "3.1.0"),
        "info": {"title": "server", "version": "0"},
        "components": document.get("components", {}),
        "paths": {"/body": {"post": {"requestBody": content, "responses": {}}}},
    }
    strategy = schemathesis.openapi.from_dict(described)["/body"]["POST"].as_strategy()
    return strategy.map(lambda case: case.body if isinstance(case.body, dict) else {})


def _filled(operation: Operation, values: Mapping[str, str]) -> str:
    """Return the path with its parameters, and the query parameters that have a value."""
    path, query = operation.route, []
    for name, where in operation.parameters:
        if where == "path":
            path = path.replace("{" + name + "}", values.get(name, "a"))
        elif where == "query" and name in values:
            query.append(f"{name}={values[name]}")
    return f"{path}?{'&'.join(query)}" if query else path


def paths(value: Any, prefix: Path = ()) -> Iterator[Path]:
    """Yield the paths of everything inside a value, the outer ones first.

    Of a list only the first two items count.
    """
    children = list(enumerate(value[:2]) if isinstance(value, list) else _items(value))
    yield from ((*prefix, name) for name, _ in children)
    for name, child in children:
        yield from paths(child, (*prefix, name))


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    yield from value.items() if isinstance(value, Mapping) else ()


def with_field(body: Any, path: Path, value: Any) -> Any:
    """Return a copy with a field set.

    Objects and lists on the way there are made, in place of values of other types.
    """
    if not path:
        return copy.deepcopy(value)
    head, *rest = path
    if isinstance(head, int):
        items = list(body) if isinstance(body, list) else []
        items += [None] * (head + 1 - len(items))
        items[head] = with_field(items[head], tuple(rest), value)
        return items
    owned = dict(_items(body))
    return {**owned, head: with_field(owned.get(head), tuple(rest), value)}


def without_field(body: Any, path: Path) -> Any:
    """Return a copy without a field; the same value if it has none there."""
    try:
        changed = copy.deepcopy(body)
        owner = functools.reduce(lambda value, name: value[name], path[:-1], changed)
        del owner[path[-1]]
    except (LookupError, TypeError):
        return body
    return changed
