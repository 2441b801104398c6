"""Checks a parsed document against a JSON schema of this package and words every problem: key, value, what is allowed.

A schema may carry ``x-allowed``: what is allowed, in words, where its own keywords would read badly.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from .paths import DATA

MAX_SHOWN = 80
MAX_PROBLEMS = 20


@functools.cache
def load_schema(name: str) -> dict[str, Any]:
    """A schema file of this package."""
    loaded: dict[str, Any] = json.loads((DATA / "json_schemas" / name).read_text(encoding="utf-8"))
    return loaded


def problems(document: object, schema_name: str) -> list[str]:
    """Everything that is wrong, in the order of the document; empty when nothing is."""
    from jsonschema import Draft202012Validator

    validator = Draft202012Validator(load_schema(schema_name))
    errors = sorted(validator.iter_errors(document), key=lambda error: _key(error.absolute_path))
    found = list(dict.fromkeys(line for error in errors for line in _word(error)))
    if len(found) > MAX_PROBLEMS:
        found[MAX_PROBLEMS:] = [f"and {len(found) - MAX_PROBLEMS} more"]
    return found


def shown(value: object) -> str:
    """A value for a message: one line, bounded, control characters escaped."""
    text = ascii(value) if not isinstance(value, str) or not value.isprintable() else repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`` Did you mean ...?`` or nothing."""
    close = difflib.get_close_matches(given, list(known), n=1)
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
