"""The questions of one operation: a sweep that sets each field to each value once, and drawn bodies
of which a few fields are taken over.

Everything is drawn from the seed and the number of the round, never from time.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from ....errors import UsageError
from ....schemas.drawing import draw_distinct
from ..question import FORM, Question, body_text
from .bases import bases_of
from .description import Operation, Path, closed_schema, fields
from .edits import paths, with_field, without_field
from .values import BODIES, PARAMETERS, VALUES, of_type

DRAWN_SHARE = 4
"""One of so many questions of a round is drawn."""
FIELDS_A_ROUND = 8
"""Number of fields of a body that schemathesis draws in a round.

Whole bodies, of up to eighty fields, take ten times as long.
"""


@dataclasses.dataclass(frozen=True)
class Drawer:
    """Draws questions for the operations of one server's description."""

    server: str
    document: Mapping[str, Any]

    def questions(
        self, operation: Operation, seed_value: int, number: int, count: int
    ) -> list[Question]:
        """Return at most ``count`` questions of a round; empty if there are no more.

        In round 0 the valid requests come first.
        """
        sweep = self._shuffled(
            operation, random.Random(f"{seed_value} {self.server} {operation.label}")
        )
        share = count - count // DRAWN_SHARE
        swept = sweep[number * share : (number + 1) * share]
        drawn = (
            self._drawn(operation, seed_value * 1000 + number, count - len(swept))
            if self._is_wide(operation)
            else []
        )
        plain = (
            [self._question(operation, body_text(dict(base))) for base in self._bases(operation)]
            if not number
            else []
        )
        return list(dict.fromkeys([*plain, *swept, *drawn]))

    def _is_wide(self, operation: Operation) -> bool:
        return bool(operation.schema) and operation.content != FORM

    def _bases(self, operation: Operation) -> Sequence[Mapping[str, Any]]:
        return bases_of(self.server, operation.route)

    def _question(self, operation: Operation, body: str | None, path: str = "") -> Question:
        content = operation.content or "json"
        return Question(
            self.server,
            operation.method,
            path or _filled(operation),
            operation.route,
            body,
            content,
        )

    def _shuffled(self, operation: Operation, generator: random.Random) -> list[Question]:
        """Return the sweep with one value of each field after the other, so that every field is
        changed early."""
        groups = [list(group) for group in self._sweep(operation)]
        generator.shuffle(groups)
        for group in groups:
            generator.shuffle(group)
        passes = itertools.zip_longest(*groups)
        return list(
            dict.fromkeys(question for one in passes for question in one if question is not None)
        )

    def _sweep(self, operation: Operation) -> Iterator[Iterator[Question]]:
        """Yield the questions about each field, about parameters, and about whole bodies."""
        yield self._parameters(operation)
        if not operation.content:
            return
        if operation.content != FORM:
            yield (self._question(operation, text) for text in BODIES)
        bases = [dict(base) for base in self._bases(operation)] or [{}]
        described = fields(self.document, operation.schema)
        owners: dict[Path, dict[str, Any]] = {}
        for base in bases:
            owners = dict.fromkeys(paths(base), base) | owners
        for path in (*owners, *(path for path in described if path not in owners)):
            yield self._changes(
                operation, owners.get(path, bases[0]), path, described.get(path, {})
            )

    def _changes(
        self, operation: Operation, base: dict[str, Any], path: Path, schema: Mapping[str, Any]
    ) -> Iterator[Question]:
        yield self._question(operation, body_text(without_field(base, path)))
        for value in (*VALUES, *of_type(schema)):
            yield self._question(operation, body_text(with_field(base, path, value)))

    def _parameters(self, operation: Operation) -> Iterator[Question]:
        body = (
            body_text(dict(next(iter(self._bases(operation)), {}))) if operation.content else None
        )
        if not operation.content:
            yield self._question(operation, None)
        for name, _ in operation.parameters:
            for value in PARAMETERS:
                yield self._question(operation, body, _filled(operation, {name: value}))

    def _drawn(self, operation: Operation, seed_value: int, count: int) -> list[Question]:
        """Return valid requests with several changes: fields of bodies that schemathesis draws,
        values of their own types, and one odd value.

        With more odd values nearly every request is refused.
        """
        bases = self._bases(operation) or ({},)
        closed = closed_schema(self.document, operation.schema)
        names = sorted(closed["properties"])
        chosen = random.Random(seed_value).sample(names, min(FIELDS_A_ROUND, len(names)))
        bodies = _bodies(
            self.document,
            {**closed, "properties": {name: closed["properties"][name] for name in chosen}},
        )
        known = list(fields(self.document, operation.schema).items())

        @st.composite
        def requests(draw: st.DrawFn) -> Question:
            body: Any = dict(draw(st.sampled_from(bases)))
            if draw(st.booleans()):
                drawn = draw(bodies)
                names = (
                    draw(st.lists(st.sampled_from(sorted(drawn)), max_size=2, unique=True))
                    if drawn
                    else []
                )
                for name in names:
                    body = with_field(body, (name,), drawn[name])
            for path, schema in draw(st.lists(st.sampled_from(known), max_size=4)) if known else []:
                if plain := of_type(schema):
                    body = with_field(body, path, draw(st.sampled_from(plain)))
            if draw(st.booleans()) and known:
                body = with_field(
                    body, draw(st.sampled_from(known))[0], draw(st.sampled_from(VALUES))
                )
            return self._question(operation, body_text(body))

        return draw_distinct(requests(), count, seed_value)[:count]


def _bodies(
    document: Mapping[str, Any], schema: Mapping[str, Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for bodies of a schema.

    Schemathesis draws them, with what the schema refers to in the server's description.
    """
    try:
        import schemathesis
    except ImportError:
        raise UsageError(
            "fuzz api needs schemathesis: install pytest-vllm-regress[fuzz-api]"
        ) from None
    described = {
        "openapi": document.get("openapi", "3.1.0"),
        "info": {"title": "server", "version": "0"},
        "components": document.get("components", {}),
        "paths": {
            "/body": {
                "post": {
                    "requestBody": {
                        "required": True,
                        "content": {"application/json": {"schema": schema}},
                    },
                    "responses": {},
                }
            }
        },
    }
    strategy = schemathesis.openapi.from_dict(described)["/body"]["POST"].as_strategy()
    return strategy.map(lambda case: case.body if isinstance(case.body, dict) else {})


def _filled(operation: Operation, values: Mapping[str, str] | None = None) -> str:
    """Return the path with its parameters, and the query parameters that have a value."""
    values = values or {}
    path = operation.route
    for name, where in operation.parameters:
        if where == "path":
            path = path.replace("{" + name + "}", values.get(name, "a"))
    query = "&".join(
        f"{name}={values[name]}"
        for name, where in operation.parameters
        if where == "query" and name in values
    )
    return f"{path}?{query}" if query else path
