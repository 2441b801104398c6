"""What a text has instead of what a pattern wants: the nearest line, and where it differs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable

from ..errors import Part
from ..util.patterns import PatternError, search
from .observation import Observation

MAX_LINES = 5_000
"""Lines of a part that are compared: the last ones, because a failure ends a log."""
_MAX_WIDTH = 300
_MAX_PATTERN = 300
"""Characters of a pattern that are tried one after another to find where a line differs."""
_LEAST_COMMON = 0.5
"""Share of the words of a pattern that the nearest line has."""
_SHOWN = 60
_SHORTEST = 4
"""Characters of a beginning that says something."""
_SECONDS = 0.1
_SYNTAX = re.compile(r"\\[A-Za-z]|\(\?[a-zA-Z]*[:=!<]?|[^\w\s]")
_WORD = re.compile(r"\w{2,}")


def difference(pattern: str, observed: Observation, parts: Iterable[Part]) -> str:
    """Return in words what an observation has instead of a text that matches ``pattern``, which was
    searched in ``parts`` without success; empty if nothing is similar."""
    searched = [part for part in parts if part in observed.parts]
    for part, text in observed.parts.items():
        with contextlib.suppress(PatternError):
            if part not in searched and search(pattern, text) is not None:
                return f'it matches in {part}, which is not searched: name it in where = ["{part}"]'
    words = set(_WORD.findall(_SYNTAX.sub(" ", pattern).lower()))
    lines = [
        (len(words.intersection(_WORD.findall(line.lower()))), -number, part, line)
        for part in searched
        for number, line in _last_lines(observed.parts[part])
    ]
    if not words or not lines:
        return ""
    common, number, part, line = max(lines)
    if common < _LEAST_COMMON * len(words):
        return ""
    place = f"{part}, line {-number}"
    return _where_it_differs(pattern, line, place) or f"the nearest is {place}: {line[:_SHOWN]!r}"


def _last_lines(text: str) -> Iterable[tuple[int, str]]:
    lines = text.splitlines()
    first = max(0, len(lines) - MAX_LINES)
    return ((n, line[:_MAX_WIDTH]) for n, line in enumerate(lines[first:], first + 1))


def _where_it_differs(pattern: str, line: str, place: str) -> str:
    """Return in words what follows in the line, and in the pattern, after the longest beginning of
    the pattern that matches; empty if none does."""
    for end in range(min(len(pattern), _MAX_PATTERN), 0, -1):
        try:
            span = search(pattern[:end], line, _SECONDS)
        except PatternError:  # half a group or a set
            continue
        if span is None or span[1] - span[0] < _SHORTEST:
            continue
        same, rest, wanted = line[slice(*span)], line[span[1] :].rstrip(), pattern[end:]
        is_number = rest[:1].isdigit() and wanted[:1].isdigit()
        varies = r". A number that varies is \d+" if is_number else ""
        return (
            f"in {place}, {same[-_SHOWN:]!r} goes on with {rest[:_SHOWN]!r} instead of "
            f"{wanted[:_SHOWN]!r}{varies}"
        )
    return ""
