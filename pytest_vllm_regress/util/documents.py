"""Parse untrusted JSON and TOML within bounds of size and depth."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any, NoReturn

from ..errors import UsageError
from .files import read_bounded

MAX_KEY_PARTS = 16
"""Limit for a dotted TOML key. ``tomllib`` keeps every prefix of a key, so 64 KB of ``a.a.a`` would take 4 GB."""
MAX_DEPTH = 100
# Matches strings and comments as a whole, terminated or not, so that the scan is linear.
_TOML = re.compile(
    r'"""(?:[^"\\]++|\\.|"(?!""))*+(?:"{3,5})?|\'\'\'(?:[^\']++|\'(?!\'\'))*+(?:\'{3,5})?'
    r'|"(?:[^"\\\n]++|\\[^\n])*+"?|\'[^\'\n]*+\'?|#[^\n]*+|(?P<dot>\.)|(?P<open>[\[{])|(?P<close>[\]}])|(?P<end>[=\n,])',
    re.DOTALL,
)


def load_json(path: Path, limit: int, *, what: str = "a file", error: type[UsageError] = UsageError) -> Any:
    """Return the JSON document in a regular file of at most ``limit`` bytes. Raises ``error``, which names the path."""
    try:
        return parse_json(read_bounded(path, limit, what=what, error=error))
    except ValueError as problem:
        raise error(f"{path}: not valid JSON: {problem}") from None


def load_toml(path: Path, limit: int, *, what: str = "a file", error: type[UsageError] = UsageError) -> dict[str, Any]:
    """Return the TOML document in a regular file of at most ``limit`` bytes. Raises ``error``, which names the path."""
    try:
        return parse_toml(read_bounded(path, limit, what=what, error=error).decode("utf-8"))
    except ValueError as problem:
        raise error(f"{path}: not valid TOML: {problem}") from None


def parse_json(content: str | bytes) -> Any:
    """Return the JSON document. Raises ``ValueError``, also for NaN and infinity."""
    text = content.decode("utf-8") if isinstance(content, bytes) else content
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return the TOML document. Raises ``ValueError``, also for keys of more than ``MAX_KEY_PARTS`` parts and for deep nesting."""
    _check_toml_bounds(text)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _check_toml_bounds(text: str) -> None:
    """Raise ``ValueError`` for keys with too many parts and for brackets nested too deeply."""
    dots = depth = 0
    for token in _TOML.finditer(text):
        kind = token.lastgroup
        if kind == "dot":
            dots += 1
        elif kind is not None:
            dots = 0
            depth += (kind == "open") - (kind == "close")
        if dots >= MAX_KEY_PARTS or depth > MAX_DEPTH:
            line = text.count("\n", 0, token.start()) + 1
            raise ValueError(
                f"a key of more than {MAX_KEY_PARTS} parts, or brackets more than {MAX_DEPTH} deep, in line {line}"
            )


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
