"""JSON and TOML of others, parsed within bounds. What is wrong is a ``ValueError`` with short words, or the caller's error with the path."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any, NoReturn

from ..errors import UsageError
from .files import read_bounded

MAX_KEY_PARTS = 16
"""Of a dotted key in TOML: Python's parser keeps every beginning of a key, so that 64 KB of ``a.a.a`` would take 4 GB."""
MAX_DEPTH = 100
# Strings and comments are skipped whole, closed or not: each character is looked at once.
_TOML = re.compile(
    r'"""(?:[^"\\]++|\\.|"(?!""))*+(?:"{3,5})?|\'\'\'(?:[^\']++|\'(?!\'\'))*+(?:\'{3,5})?'
    r'|"(?:[^"\\\n]++|\\[^\n])*+"?|\'[^\'\n]*+\'?|#[^\n]*+|(?P<dot>\.)|(?P<open>[\[{])|(?P<close>[\]}])|(?P<end>[=\n,])',
    re.DOTALL,
)


def load_json(path: Path, limit: int, *, what: str = "a file", error: type[UsageError] = UsageError) -> Any:
    """The JSON document in a regular file of at most ``limit`` bytes. Raises ``error`` that names the path."""
    try:
        return parse_json(read_bounded(path, limit, what=what, error=error))
    except ValueError as wrong:
        raise error(f"{path}: not valid JSON: {wrong}") from None


def load_toml(path: Path, limit: int, *, what: str = "a file", error: type[UsageError] = UsageError) -> dict[str, Any]:
    """The TOML document in a regular file of at most ``limit`` bytes. Raises ``error`` that names the path."""
    try:
        return parse_toml(read_bounded(path, limit, what=what, error=error).decode("utf-8"))
    except ValueError as wrong:
        raise error(f"{path}: not valid TOML: {wrong}") from None


def parse_json(content: str | bytes) -> Any:
    """The JSON document. Raises ``ValueError``."""
    text = content.decode("utf-8") if isinstance(content, bytes) else content
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """The TOML document, with keys of at most ``MAX_KEY_PARTS`` parts. Raises ``ValueError``."""
    _check(text)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _check(text: str) -> None:
    """Raise ``ValueError`` for keys of too many parts and for too deep brackets, before they are parsed."""
    dots = depth = 0
    for found in _TOML.finditer(text):
        kind = found.lastgroup
        if kind == "dot":
            dots += 1
        elif kind is not None:
            dots = 0
            depth += (kind == "open") - (kind == "close")
        if dots >= MAX_KEY_PARTS or depth > MAX_DEPTH:
            line = text.count("\n", 0, found.start()) + 1
            raise ValueError(
                f"a key of more than {MAX_KEY_PARTS} parts, or brackets more than {MAX_DEPTH} deep, in line {line}"
            )


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
