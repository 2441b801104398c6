"""Versions, specifiers, requirements and markers in foreign text: parsed within bounds, or None. Nothing here raises for what a text holds."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

MAX_VERSION = 200
MAX_REQUIREMENT = 2000
"""Characters. Beyond some thousand digits, or brackets, Python raises other errors than the ones for a wrong version or requirement."""


def version_of(text: str) -> Version | None:
    """The PEP 440 version that ``text`` is."""
    try:
        return Version(text) if len(text) <= MAX_VERSION else None
    except InvalidVersion:
        return None


def is_version(text: str) -> bool:
    """``text`` is a PEP 440 version."""
    return version_of(text) is not None


def specifiers_of(text: str) -> SpecifierSet | None:
    """The PEP 440 specifiers that ``text`` is."""
    try:
        return SpecifierSet(text) if len(text) <= MAX_REQUIREMENT else None
    except InvalidSpecifier:
        return None


def requirement_of(text: str) -> Requirement | None:
    """The PEP 508 requirement that ``text`` is, on one line."""
    if len(text) > MAX_REQUIREMENT or not text.isprintable():
        return None
    try:
        return Requirement(text)
    except (InvalidRequirement, ValueError, RecursionError):
        return None


def marker_holds(marker: str | Marker, environment: Mapping[str, str]) -> bool | None:
    """Whether the marker holds there; None where that cannot be said."""
    try:
        if isinstance(marker, str):
            if len(marker) > MAX_REQUIREMENT:
                return None
            marker = Marker(marker)
        return marker.evaluate(dict(environment))
    except (ValueError, RecursionError, UndefinedComparison, UndefinedEnvironmentName):
        return None
