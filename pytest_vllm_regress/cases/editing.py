"""Edits of case files that keep comments and layout."""

from __future__ import annotations

from typing import Any

from packaging.utils import canonicalize_name

from ..util.documents import parse_toml
from .model import Range


def with_range(text: str, affected: Range) -> str:
    """Return the text of a case file in which ``[affected]`` has this specifier for the range's package, which it must name."""
    import tomlkit

    file: Any = tomlkit.parse(text)
    table = file["affected"]
    table[next(name for name in table if canonicalize_name(name) == affected.package)] = affected.specifier
    return _checked(file.as_string())


def with_fixed_evidence(text: str, environment: str) -> str:
    """Return the text of a case file with one more environment in ``evidence.fixed``."""
    import tomlkit

    file: Any = tomlkit.parse(text)
    file["evidence"]["fixed"].append(environment)
    return _checked(file.as_string())


def _checked(text: str) -> str:
    parse_toml(text)  # tomlkit must have written valid TOML
    return text
