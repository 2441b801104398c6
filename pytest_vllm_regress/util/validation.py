"""Validate a parsed document against a JSON schema and describe each problem: key,
value, what is allowed.

A schema may have ``x-allowed``, a description of what is allowed, for where its keywords would make
a poor message.
"""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MAX_SHOWN = 80
MAX_PROBLEMS = 20
MAX_ERRORS = 200
"""Limit for the validation errors that are examined: a hostile file may have one in every byte."""
MAX_KNOWN = 1000
_PLAIN_VALUES = (int, float, bool, type(None))


def problems(document: object, schema: Mapping[str, Any]) -> list[str]:
    """Return the problems of a document, in its order; empty if it is valid. At most
    ``MAX_PROBLEMS``, each of bounded length."""
    from jsonschema import Draft202012Validator, validators  # takes long, and most files are valid

    # jsonschema's own uniqueItems takes quadratic time.
    kind: Any = validators.extend(Draft202012Validator, {"uniqueItems": _unique})  # type: ignore[no-untyped-call]  # jsonschema's
    errors = itertools.islice(kind(schema).iter_errors(document), MAX_ERRORS)
    ordered = sorted(errors, key=lambda error: _key(error.absolute_path))
    lines = itertools.chain.from_iterable(map(_describe, ordered))
    unique: dict[str, None] = {}
    for line in itertools.islice(lines, MAX_ERRORS):
        unique[line] = None
        if len(unique) > MAX_PROBLEMS:
            return [*itertools.islice(unique, MAX_PROBLEMS), "and more"]
    return list(unique)


def _unique(validator: object, enabled: bool, instance: object, schema: object) -> Iterator[Any]:
    from jsonschema import ValidationError

    if (
        enabled
        and isinstance(instance, list)
        and len({_identity(item) for item in instance}) < len(instance)
    ):
        yield ValidationError("has a value twice")


def _identity(value: object) -> object:
    """Return a hashable key that is equal for equal values."""
    return value if isinstance(value, str) else repr(value)


def format_value(value: object) -> str:
    """Format a value for a message: on one line, of bounded length, with control characters
    escaped. Reads only the beginning of a large value."""
    if isinstance(value, str):
        start = value[: MAX_SHOWN + 1]
        text = repr(start) if start.isprintable() else ascii(start)
    else:
        text = ascii(value if isinstance(value, _PLAIN_VALUES) else _beginning(value))
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _beginning(value: object, depth: int = 4) -> object:
    """Return the first items of a list or a table, enough to fill a message."""
    if isinstance(value, str):
        return value[: MAX_SHOWN + 1]
    if isinstance(value, Mapping):
        items = itertools.islice(value.items(), MAX_SHOWN if depth else 0)
        return {_beginning(key, 0): _beginning(item, depth - 1) for key, item in items}
    if isinstance(value, (list, tuple)):
        return [_beginning(item, depth - 1) for item in value[: MAX_SHOWN if depth else 0]]
    return value


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return `` Did you mean ...?`` for the closest known name; empty if none has a similarity of
    ``cutoff`` (between 0 and 1)."""
    close = difflib.get_close_matches(
        name[:MAX_SHOWN], list(itertools.islice(known, MAX_KNOWN)), n=1, cutoff=cutoff
    )
    return f" Did you mean {close[0]}?" if close else ""


def _key(path: Iterable[str | int]) -> str:
    key = ""
    for part in path:
        key += (
            f"[{part}]"
            if isinstance(part, int)
            else ("." if key else "") + (part if _plain(part) else format_value(part))
        )
    return key


def _plain(part: str) -> bool:
    return (
        len(part) <= MAX_SHOWN
        and part.replace("-", "").replace("_", "").isalnum()
        and part.isascii()
    )


def _describe(error: Any) -> Iterator[str]:
    key, schema = _key(error.absolute_path), error.schema
    if error.validator == "additionalProperties" and schema["additionalProperties"] is False:
        properties = schema["properties"]
        for name in error.instance:
            if name not in properties:
                place = _key([*error.absolute_path, name])
                yield f"{place}: unknown key.{did_you_mean(name, properties)} Allowed here: {', '.join(properties)}"
    elif error.validator == "required":
        for name in error.validator_value:
            if name not in error.instance:
                yield f"{_key([*error.absolute_path, name])}: missing. {_description(error, name)}".rstrip()
    elif (
        error.validator == "anyOf"
        and "x-allowed" not in schema
        and (closest := _of_the_same_type(error))
    ):
        yield from itertools.chain.from_iterable(map(_describe, closest))
    elif "propertyNames" in error.absolute_schema_path:
        allowed = schema.get("x-allowed", "another name")
        yield f"{_key([*error.absolute_path, error.instance])}: not a name for a key here; allowed is {allowed}"
    else:
        yield f"{key or 'the file'} = {format_value(error.instance)}: {_allowed(error, schema)}"


def _of_the_same_type(error: Any) -> list[Any]:
    """Return the errors of the alternatives whose type matches that of the value; empty if none
    does."""
    other = {inner.schema_path[0] for inner in error.context if _is_of_other_type(inner)}
    return [inner for inner in error.context if inner.schema_path[0] not in other]


def _is_of_other_type(error: Any) -> bool:
    return error.validator == "type" and not error.path


def _description(error: Any, name: str) -> str:
    return str(error.schema.get("properties", {}).get(name, {}).get("description", ""))


def _allowed(error: Any, schema: dict[str, Any]) -> str:
    if "x-allowed" in schema:
        return f"allowed is {schema['x-allowed']}"
    value = error.validator_value
    if error.validator == "enum" and len(value) > 1:
        return f"allowed: {', '.join(map(str, value))}.{did_you_mean(str(error.instance), map(str, value))}"
    if error.validator == "type":
        return f"allowed is {_type_names(value)}"
    if error.validator == "anyOf":
        types = (inner.validator_value for inner in error.context if _is_of_other_type(inner))
        return f"allowed is {' or '.join(map(_type_names, sorted(types, key='null'.__ne__)))}"
    value = value[0] if error.validator == "enum" else value
    words = _WORDS.get(error.validator, "does not fit: {} {}").format(value, error.validator)
    return words.replace("1 characters are", "1 character is") if value == 1 else words


def _type_names(types: str | list[str]) -> str:
    return " or ".join(_TYPES[name] for name in ([types] if isinstance(types, str) else types))


_TYPES = {
    "object": "a table",
    "array": "a list",
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}
_WORDS = {
    "minItems": "at least {} needed",
    "maxItems": "at most {} allowed",
    "minLength": "at least {} characters are needed",
    "maxLength": "at most {} characters are allowed",
    "minimum": "must be at least {}",
    "maximum": "must be at most {}",
    "uniqueItems": "holds a value twice",
    "const": "allowed is only {}",
    "enum": "allowed is only {}",
}


def json_or_text(text: str) -> Any:
    """Return the value of a text that is JSON, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
