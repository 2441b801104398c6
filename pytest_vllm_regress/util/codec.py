"""Values as JSON documents: encode, validate and decode, and the JSON schema of a type. Built on
msgspec.

A type is a frozen dataclass, or a ``Document`` if its keys should be checked and its defaults left
out. Limits stand in the annotations (``Annotated[str, Meta(max_length=80)]``), descriptions in them
or in the string below a field; the schema is generated from both, so there is one place for each
rule.
"""

from __future__ import annotations

import ast
import enum
import inspect
import itertools
import json
import textwrap
import threading
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, TypeVar

import msgspec
import msgspec.inspect
import msgspec.structs
from msgspec import Meta as Meta
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..errors import UsageError
from .documents import load_json, load_toml
from .files import write_atomically
from .validation import problems

T = TypeVar("T")
_TEXTS = (Version, SpecifierSet, PurePath)
"""Types that are stored as a string and made from one."""
_building = threading.Lock()
_built: set[type] = set()


class Document(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of types that are read from files: unknown keys are errors, and defaults are not
    written."""


D = TypeVar("D", bound=Document)


def encode(value: object) -> Any:
    """Return the plain values of a document: dicts, lists, strings, numbers, booleans and None."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_encode_other)


def replace(value: D, **changes: Any) -> D:
    """Return the document with other values of some fields, like ``dataclasses.replace``."""
    return msgspec.structs.replace(value, **changes)


def variant(value: D, document: object) -> D | None:
    """Return the document of the same type with other content; None if it is not allowed."""
    try:
        return msgspec.convert(document, built(type(value)), dec_hook=_decode_other)
    except msgspec.ValidationError:
        return None


def built(kind: type[T]) -> type[T]:
    """Return ``kind`` after msgspec has built what it needs for decoding it.

    msgspec builds that at the first use and ends the process with a segmentation fault if another
    thread needs a part of it meanwhile (0.22.0). Every type that is decoded comes through here.
    """
    if kind not in _built:
        with _building:
            msgspec.json.Decoder(kind)
            _built.add(kind)
    return kind


def decode(
    kind: type[T], document: object, origin: object, *, error: type[UsageError] = UsageError
) -> T:
    """Return the value that a parsed document describes.

    Raises ``error`` with a line for each problem; ``origin`` (a path, say) stands before each.
    """
    try:
        return msgspec.convert(document, built(kind), dec_hook=_decode_other)
    except (msgspec.ValidationError, UnicodeError) as first:  # a lone surrogate in a key, say
        # msgspec stops at the first problem; the schema names all of them, with what is allowed.
        lines = problems(document, json_schema(kind)) or [str(first)]
        raise error("\n".join(f"{origin}: {line}" for line in lines)) from None


def load(
    kind: type[T], path: Path, limit: int, *, what: str, error: type[UsageError] = UsageError
) -> T:
    """Return the value in a TOML or JSON file of at most ``limit`` bytes. Raises ``error``."""
    read = load_toml if path.suffix == ".toml" else load_json
    return decode(kind, read(path, limit, what=what, error=error), path, error=error)


def save(path: Path, value: object) -> None:
    """Write the value as indented JSON, atomically. Raises ``UsageError``."""
    write_atomically(path, to_text(value))


def to_text(value: object) -> str:
    """Return the value as indented JSON that ends with a newline."""
    return json.dumps(encode(value), indent=1) + "\n"


def json_schema(kind: type) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a type."""
    types: dict[type, Any] = {}
    _collect_named_types(msgspec.inspect.type_info(kind), types)
    (schema, *references), definitions = msgspec.json.schema_components(
        [kind, *types], schema_hook=_schema_of_other
    )
    for (cls, info), reference in zip(types.items(), references, strict=True):
        definition = definitions[reference["$ref"].rpartition("/")[2]]
        if issubclass(cls, enum.Enum):
            definition["enum"] = [member.value for member in cls]  # msgspec sorts them
            continue
        strings = _strings_below_fields(cls)
        for field in info.fields:
            if field.name in strings:
                properties = definition["properties"][field.encode_name]
                properties.setdefault("description", strings[field.name])
    return {**schema, "$defs": definitions} if definitions else schema


def _collect_named_types(info: object, types: dict[type, Any]) -> None:
    """Add the types that have a definition of their own in a schema."""
    if isinstance(info, tuple):
        for part in info:
            _collect_named_types(part, types)
    elif isinstance(info, (msgspec.inspect.Type, msgspec.inspect.Field)):
        cls = getattr(info, "cls", None)
        if cls in types or isinstance(info, msgspec.inspect.CustomType):
            return
        if cls is not None:
            types[cls] = info
        _collect_named_types(msgspec.structs.astuple(info), types)


def _strings_below_fields(cls: type) -> dict[str, str]:
    """Return the string that follows each field in its class, on one line."""
    strings: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if owner.__module__.partition(".")[0] in ("builtins", "msgspec"):
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(node, ast.ClassDef)
        for field, text in itertools.pairwise(node.body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                strings[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return strings


def _encode_other(value: object) -> Any:
    if isinstance(value, Mapping):  # msgspec knows only dict, and read-only values hold a proxy
        return dict(value)
    if isinstance(value, _TEXTS):
        return str(value)
    raise NotImplementedError(f"a {type(value).__name__} cannot be stored")


def _decode_other(kind: type, value: Any) -> Any:
    if issubclass(kind, _TEXTS):
        if not isinstance(value, str):
            raise ValueError("expected a string")
        return kind(value)
    raise NotImplementedError(f"a {kind.__name__} cannot be read")


def _schema_of_other(kind: type) -> dict[str, Any]:
    if issubclass(kind, _TEXTS):
        return {"type": "string"}
    raise NotImplementedError(kind.__name__)
