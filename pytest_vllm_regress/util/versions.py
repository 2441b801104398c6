"""Parse versions, specifiers, requirements and markers from untrusted text; and find the fewest
packages that explain a failure.

Functions that parse return None for invalid input and never raise.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Mapping, Sequence

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

MOST_SUSPECTS = 4
"""Number of names that are tried one by one before all are halved: those that the failure mentions
come first."""
MAX_VERSION = 200
SEPARATOR = "||"
"""Separates the alternatives of a range: versions with a failure that came back."""
MAX_REQUIREMENT = 2000
"""Characters.

For thousands of digits or brackets ``packaging`` raises errors other than its own.
"""


@functools.lru_cache(maxsize=4096)  # an audit asks for the same hundred, 40,000 times
def version_of(text: str) -> Version | None:
    """Return the PEP 440 version in ``text``."""
    try:
        return Version(text) if len(text) <= MAX_VERSION else None
    except InvalidVersion:
        return None


def is_version(text: str) -> bool:
    """Return whether ``text`` is a PEP 440 version."""
    return version_of(text) is not None


def specifiers_of(text: str) -> SpecifierSet | None:
    """Return the PEP 440 specifiers in ``text``."""
    try:
        return SpecifierSet(text) if len(text) <= MAX_REQUIREMENT else None
    except InvalidSpecifier:
        return None


def alternatives_of(text: str) -> tuple[SpecifierSet, ...] | None:
    """Return the PEP 440 specifiers of each alternative in ``text``: two for ``>=0.7,<0.8.5 ||
    >=0.34``. Only a single one may be empty."""
    parts = text.split(SEPARATOR)
    specifiers = (
        [specifiers_of(part.strip()) for part in parts] if len(text) <= MAX_REQUIREMENT else [None]
    )
    if None in specifiers or (len(parts) > 1 and not all(map(str.strip, parts))):
        return None
    return tuple(part for part in specifiers if part is not None)


def requirement_of(text: str) -> Requirement | None:
    """Return the PEP 508 requirement in ``text``, which must be one line."""
    if len(text) > MAX_REQUIREMENT or not text.isprintable():
        return None
    try:
        return Requirement(text)
    except (InvalidRequirement, ValueError, RecursionError):
        return None


def marker_holds(marker: str | Marker, environment: Mapping[str, str]) -> bool | None:
    """Return whether the marker holds in the environment; None if it cannot be evaluated."""
    try:
        if isinstance(marker, str):
            if len(marker) > MAX_REQUIREMENT:
                return None
            marker = Marker(marker)
        return marker.evaluate(dict(environment))
    except (ValueError, RecursionError, UndefinedComparison, UndefinedEnvironmentName):
        return None


def suspects_first(names: Sequence[str], text: str) -> list[str]:
    """Return the names with those that the text of a failure mentions first: the last mentioned one
    is the nearest to the failure."""
    places = {name: max(text.rfind(name), text.rfind(name.replace("-", "_"))) for name in names}
    return sorted(names, key=lambda name: -places[name])


def fewest(names: Sequence[str], restores: Callable[[Sequence[str]], bool]) -> tuple[str, ...]:
    """Return a set of names for which ``restores`` holds and of which none can be left out; empty
    if it does not hold for all together.

    The first ``MOST_SUSPECTS`` are tried one by one. Then the last name of the shortest beginning
    that restores, together with the names found before, is one of them.
    """
    for name in names[:MOST_SUSPECTS]:
        if restores([name]):
            return (name,)
    if not names or not restores(names):
        return ()
    needed: list[str] = []
    end = len(names)
    while end:
        missing = bisect.bisect_left(
            range(end),
            True,
            lo=0 if needed else 1,
            key=lambda count: restores([*names[:count], *needed]),
        )
        if not missing:
            break
        needed.insert(0, names[missing - 1])
        end = missing - 1
    return tuple(needed)
