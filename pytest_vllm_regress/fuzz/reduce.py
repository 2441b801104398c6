"""What Hypothesis leaves of a schema, made smaller by cutting JSON: parts taken out, subschemas put in the place of the whole."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jsonschema.exceptions import SchemaError

from ..schemas import features, validator
from ..schemas.features import DEFINITIONS, children
from .finding import Finding, questions_of, spelt
from .oracle import Outcome, Problem, Question

MOST_ASKED = 300
_SIMPLE: tuple[Any, ...] = (None, "", 0, [], {}, [None], {"a": None})
_KEPT = ("type", "prefixItems")


def reduce(finding: Finding, ask: Callable[[Question], tuple[Problem, ...]]) -> Finding:
    """The smallest finding of the same kind that cuts lead to; the same one where none does. No cut brings in a feature: what a schema
    without a type means, say, is another question."""
    asked = 0
    smaller: Finding | None = finding
    while smaller is not None:
        finding, smaller = smaller, None
        for question in _cut(finding):
            asked += 1
            if asked > MOST_ASKED:
                return finding
            same = [
                each
                for each in ask(question)
                if (each.outcome, each.key) == (finding.problem.outcome, finding.problem.key)
            ]
            if same:
                smaller = Finding(question, same[0])
                break
    return finding


def _cut(finding: Finding) -> Iterator[Question]:
    """Questions about smaller schemas with the texts that still say what they said, and smaller texts for subschemas."""
    question, problem = questions_of(finding), finding.problem
    if question != finding.question:
        yield question
    length, used = len(spelt(question.schema)), features(question.schema)
    seen = set()
    for schema in _smaller(question.schema):
        text = spelt(schema)
        if text in seen or len(text) >= length:
            continue
        seen.add(text)
        try:
            if not features(schema) <= used:
                continue
            judge = validator(schema)
            judge.check_schema(schema)
            for value in _SIMPLE:
                judge.is_valid(value)  # a reference that leads to itself without end is no schema
            strict = validator(_closed(schema))
            is_valid = {each: strict.is_valid(json.loads(each)) for each in _texts(question.valid)}
            broken = tuple(each for each in question.invalid if not _satisfies(judge, each))
        except (
            SchemaError,
            KeyError,
            ValueError,
            RecursionError,
            AttributeError,
        ):  # no schema any more, or a reference to what was cut
            continue
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("jsonschema", "referencing"):
                continue
            raise
        kept = tuple(each for each, valid in is_valid.items() if valid)
        if (problem.outcome is Outcome.REFUSED_VALID and not kept) or (question.invalid and not broken):
            continue
        yield dataclasses.replace(question, schema=schema, valid=kept[:3], invalid=broken)


def _closed(schema: Any) -> Any:
    """The schema with every object that declares properties closed, save the parts of an allOf: what is not declared, many backends do
    not write."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    done = {key: each if key in ("allOf", "enum", "const") else _closed(each) for key, each in schema.items()}
    return {"additionalProperties": False, **done} if isinstance(schema.get("properties"), Mapping) else done


def _satisfies(judge: Any, text: str) -> bool:
    try:
        return bool(judge.is_valid(json.loads(text)))
    except ValueError:
        return False


def _texts(texts: tuple[str, ...]) -> list[str]:
    """The texts and those of all values inside, whole ones first."""
    found: dict[str, None] = dict.fromkeys(texts)
    for text in texts:
        inside = [json.loads(text)]
        for value in inside:
            inside += value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
        found |= dict.fromkeys(map(spelt, inside))
    return list(found)


def _smaller(schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One cut each, the largest first."""
    shared = {key: schema[key] for key in DEFINITIONS if key in schema}
    for child in children(schema):
        if isinstance(child, Mapping):
            yield {**child, **shared}
            yield dict(child)
    yield from _without(schema)


def _without(value: Any) -> Iterator[Any]:
    """The value with one key or item less, anywhere inside; a property goes with its place in ``required``."""
    if isinstance(value, Mapping):
        for key in value:
            if key not in _KEPT:
                yield {name: each for name, each in value.items() if name != key}
        properties = value.get("properties")
        if isinstance(properties, Mapping):
            for name in properties:
                left = {key: each for key, each in properties.items() if key != name}
                required = [each for each in value.get("required", []) if each != name]
                yield {**value, "properties": left, **({"required": required} if "required" in value else {})}
        for key, each in value.items():
            for part in _without(each):
                yield {**value, key: part}
    elif isinstance(value, list):
        for at in range(len(value)):
            yield [*value[:at], *value[at + 1 :]]
        for at, each in enumerate(value):
            for part in _without(each):
                yield [*value[:at], part, *value[at + 1 :]]
