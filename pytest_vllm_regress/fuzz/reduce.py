"""Reduce a shrunk finding further by editing its JSON: remove parts, or replace the schema by one
of its subschemas.

Hypothesis shrinks only to what the strategy can draw, and gets stuck in combinators. So a shrunk
finding is cut here: greedily, largest cuts first, each cut that still shows the same outcome and
key is kept and the next begins from there, until no cut does or ``MAX_QUESTIONS`` were asked.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jsonschema.exceptions import SchemaError

from ..schemas import features, validator
from ..schemas.features import DEFINITIONS, children
from .finding import Finding, minimal_question, to_json_text
from .oracle import Outcome, Problem, Question

MAX_QUESTIONS = 300
_SIMPLE: tuple[Any, ...] = (None, "", 0, [], {}, [None], {"a": None})
_KEPT = ("type", "prefixItems")


def reduce(finding: Finding, ask: Callable[[Question], tuple[Problem, ...]]) -> Finding:
    """Return the smallest finding of the same kind that can be reached by cuts; the same finding if
    there is none.

    A cut never introduces a feature: a schema that loses its type, say, would be another question.
    """
    count = 0
    smaller: Finding | None = finding
    while smaller is not None:
        finding, smaller = smaller, None
        for question in _smaller_questions(finding):
            count += 1
            if count > MAX_QUESTIONS:
                return finding
            same = [
                problem
                for problem in ask(question)
                if (problem.outcome, problem.key) == (finding.problem.outcome, finding.problem.key)
            ]
            if same:
                smaller = Finding(question, same[0])
                break
    return finding


def _smaller_questions(finding: Finding) -> Iterator[Question]:
    """Yield questions about smaller schemas, with the texts that are still valid or invalid and the
    values inside them."""
    question, problem = minimal_question(finding), finding.problem
    if question != finding.question:
        yield question
    length, used = len(to_json_text(question.schema)), features(question.schema)
    tried = set()
    for schema in _smaller(question.schema):
        text = to_json_text(schema)
        if text in tried or len(text) >= length:
            continue
        tried.add(text)
        try:
            if not features(schema) <= used:
                continue
            checker = validator(schema)
            checker.check_schema(schema)
            for value in _SIMPLE:
                checker.is_valid(value)  # raises RecursionError if a reference leads only to itself
            strict = validator(_closed(schema))
            is_valid = {
                text: strict.is_valid(json.loads(text)) for text in _with_parts(question.valid)
            }
            invalid = tuple(text for text in question.invalid if not _satisfies(checker, text))
        except (
            SchemaError,
            KeyError,
            ValueError,
            RecursionError,
            AttributeError,
        ):  # no longer a schema, or a reference to a part that was removed
            continue
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("jsonschema", "referencing"):
                continue
            raise
        valid = tuple(text for text, is_instance in is_valid.items() if is_instance)
        if (problem.outcome is Outcome.REFUSED_VALID and not valid) or (
            question.invalid and not invalid
        ):
            continue
        yield dataclasses.replace(question, schema=schema, valid=valid[:3], invalid=invalid)


def _closed(schema: Any) -> Any:
    """Return the schema with every object that declares properties closed, except in an allOf.

    Many backends do not write undeclared properties.
    """
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = {
        key: value if key in ("allOf", "enum", "const") else _closed(value)
        for key, value in schema.items()
    }
    return (
        {"additionalProperties": False, **closed}
        if isinstance(schema.get("properties"), Mapping)
        else closed
    )


def _satisfies(checker: Any, text: str) -> bool:
    try:
        return bool(checker.is_valid(json.loads(text)))
    except ValueError:
        return False


def _with_parts(texts: tuple[str, ...]) -> list[str]:
    """Return the texts and the texts of all values inside them, whole texts first."""
    parts: dict[str, None] = dict.fromkeys(texts)
    for text in texts:
        values = [json.loads(text)]
        for value in values:  # grows while it is read
            values += (
                value.values()
                if isinstance(value, dict)
                else value
                if isinstance(value, list)
                else []
            )
        parts |= dict.fromkeys(map(to_json_text, values))
    return list(parts)


def _smaller(schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the schema with one cut each, the largest cuts first."""
    shared = {key: schema[key] for key in DEFINITIONS if key in schema}
    for child in children(schema):
        if isinstance(child, Mapping):
            yield {**child, **shared}
            yield dict(child)
    yield from _without(schema)


def _without(value: Any) -> Iterator[Any]:
    """Yield the value without one key or item, at any depth.

    A property also disappears from ``required``.
    """
    if isinstance(value, Mapping):
        for key in value:
            if key not in _KEPT:
                yield {name: part for name, part in value.items() if name != key}
        properties = value.get("properties")
        if isinstance(properties, Mapping):
            for name in properties:
                remaining = {key: body for key, body in properties.items() if key != name}
                required = [key for key in value.get("required", []) if key != name]
                yield {
                    **value,
                    "properties": remaining,
                    **({"required": required} if "required" in value else {}),
                }
        for key, part in value.items():
            for smaller in _without(part):
                yield {**value, key: smaller}
    elif isinstance(value, list):
        for index in range(len(value)):
            yield [*value[:index], *value[index + 1 :]]
        for index, item in enumerate(value):
            for smaller in _without(item):
                yield [*value[:index], smaller, *value[index + 1 :]]
