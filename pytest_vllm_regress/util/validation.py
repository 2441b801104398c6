"""Checks a parsed document against a JSON schema of this package and words every problem: key, value, what is allowed.

A schema may carry ``x-allowed``: what is allowed, in words, where its own keywords would read badly.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .paths import DATA

MAX_SHOWN = 80
MAX_PROBLEMS = 20
MAX_ERRORS = 200
"""Faults that are looked at: a file may have one in every byte."""
MAX_KNOWN = 1000
_PLAIN_VALUES = (int, float, bool, type(None))


@functools.cache
def load_schema(name: str) -> dict[str, Any]:
    """A schema file of this package."""
    loaded: dict[str, Any] = json.loads((DATA / "json_schemas" / name).read_text(encoding="utf-8"))
    return loaded


def problems(document: object, schema_name: str) -> list[str]:
    """What is wrong, in the order of the document; empty when nothing is. Of very many faults some are found, and each is cut to a bound."""
    errors = itertools.islice(_validator(schema_name).iter_errors(document), MAX_ERRORS)
    ordered = sorted(errors, key=lambda error: _key(error.absolute_path))
    lines = itertools.chain.from_iterable(map(_word, ordered))
    found: dict[str, None] = {}
    for line in itertools.islice(lines, MAX_ERRORS):
        found[line] = None
        if len(found) > MAX_PROBLEMS:
            return [*itertools.islice(found, MAX_PROBLEMS), "and more"]
    return list(found)


@functools.cache
def _validator(schema_name: str) -> Any:
    """jsonschema's, but for the time that it takes to find out whether values are unique."""
    from jsonschema import Draft202012Validator, validators

    kind: Any = validators.extend(Draft202012Validator, {"uniqueItems": _unique})  # type: ignore[no-untyped-call]  # jsonschema's
    return kind(load_schema(schema_name))


def _unique(validator: object, wanted: bool, instance: object, schema: object) -> Iterator[Any]:
    from jsonschema import ValidationError

    if wanted and isinstance(instance, list) and len({_identity(each) for each in instance}) < len(instance):
        yield ValidationError("has a value twice")


def _identity(value: object) -> object:
    """Equal for equal values; a list or a table is told from others by its text."""
    return value if isinstance(value, str) else repr(value)


def shown(value: object) -> str:
    """A value for a message: one line, bounded, control characters escaped. Of a large one only the beginning is looked at."""
    if isinstance(value, str):
        start = value[: MAX_SHOWN + 1]
        text = repr(start) if start.isprintable() else ascii(start)
    else:
        text = ascii(value if isinstance(value, _PLAIN_VALUES) else _beginning(value))
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _beginning(value: object, depth: int = 4) -> object:
    """The first few parts of a list or a table: enough to fill what is shown."""
    if isinstance(value, str):
        return value[: MAX_SHOWN + 1]
    if isinstance(value, Mapping):
        first = itertools.islice(value.items(), MAX_SHOWN if depth else 0)
        return {_beginning(key, 0): _beginning(each, depth - 1) for key, each in first}
    if isinstance(value, (list, tuple)):
        return [_beginning(each, depth - 1) for each in value[: MAX_SHOWN if depth else 0]]
    return value


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`` Did you mean ...?`` or nothing."""
    close = difflib.get_close_matches(given[:MAX_SHOWN], list(itertools.islice(known, MAX_KNOWN)), n=1)
    return f" Did you mean {close[0]}?" if close else ""


def _key(path: Iterable[str | int]) -> str:
    key = ""
    for part in path:
        key += f"[{part}]" if isinstance(part, int) else ("." if key else "") + (part if _plain(part) else shown(part))
    return key


def _plain(part: str) -> bool:
    return len(part) <= MAX_SHOWN and part.replace("-", "").replace("_", "").isalnum() and part.isascii()


def _word(error: Any) -> Iterator[str]:
    key, schema = _key(error.absolute_path), error.schema
    if error.validator == "additionalProperties" and schema["additionalProperties"] is False:
        known = schema["properties"]
        for name in error.instance:
            if name not in known:
                place = _key([*error.absolute_path, name])
                yield f"{place}: unknown key.{did_you_mean(name, known)} Allowed here: {', '.join(known)}"
    elif error.validator == "required":
        for name in error.validator_value:
            if name not in error.instance:
                yield f"{_key([*error.absolute_path, name])}: missing. {_description(error, name)}".rstrip()
    elif "propertyNames" in error.absolute_schema_path:
        allowed = schema.get("x-allowed", "another name")
        yield f"{_key([*error.absolute_path, error.instance])}: not a name for a key here; allowed is {allowed}"
    else:
        yield f"{key or 'the file'} = {shown(error.instance)}: {_allowed(error, schema)}"


def _description(error: Any, name: str) -> str:
    return str(error.schema.get("properties", {}).get(name, {}).get("description", ""))


def _allowed(error: Any, schema: dict[str, Any]) -> str:
    if "x-allowed" in schema:
        return f"allowed is {schema['x-allowed']}"
    value = error.validator_value
    if error.validator == "enum":
        return f"allowed: {', '.join(map(str, value))}.{did_you_mean(str(error.instance), map(str, value))}"
    if error.validator == "type":
        return f"allowed is {' or '.join(_TYPES[t] for t in ([value] if isinstance(value, str) else value))}"
    return _WORDS.get(error.validator, "does not fit: {} {}").format(value, error.validator)


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
    "minLength": "at least {} characters needed",
    "maxLength": "at most {} characters allowed",
    "minimum": "must be at least {}",
    "maximum": "must be at most {}",
    "uniqueItems": "holds a value twice",
    "const": "allowed is only {}",
}
