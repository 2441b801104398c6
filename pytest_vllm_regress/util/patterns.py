"""Search a regular expression of a case file within a time limit.

Patterns are written in the syntax of Python's ``re``, which may backtrack for years over ``(a+)+b``
and cannot be interrupted. The search is done by the ``regex`` package, which takes a timeout and
gives patterns of that syntax the same meaning. It looks at its clock only now and then: on a text
of megabytes a search may end some seconds late.

Every search for a pattern from a case file comes here:

- for a verdict, in the parts of an observation that the symptom names (``cases/model.py``), for
  at most ``SECONDS`` each. A pattern that is too
  slow makes the verdict INCONCLUSIVE.
- for the documented hang, in what the engine's processes log during a wait
  (``engines/processes/logs.py``), for at most one second per read. A pattern
  that is too slow is not searched any more in that wait, which then goes on to its deadline.

Whether a pattern is a regular expression at all is checked with ``re`` when the case file is read
(``cases/loading.py``).
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    import regex

SECONDS = 5.0
MAX_TEXT = 4 * 1024 * 1024
"""Characters that are searched at once.

Of a longer text only the first and the last half of this are searched.
"""
# ``regex`` reads ``x{e<=1}`` as an approximate match and ``[[:alpha:]]`` as a POSIX class; to
# ``re`` these characters stand for themselves.
_EXTENSIONS = re.compile(
    r"\\N\{[^}]*\}|\\.|(?P<brace>\{(?!\d+(?:,\d*)?\}|,\d*\}))|(?P<posix>\[:)", re.DOTALL
)


class PatternError(UsageError):
    """A pattern cannot be searched, so nobody knows whether it matches."""


class PatternTooSlow(PatternError):
    """The search for a pattern exceeded its time or its memory."""


def search(pattern: str, text: str, seconds: float = SECONDS) -> tuple[int, int] | None:
    """Return the span of the first match of ``pattern`` in ``text`` (MULTILINE), or None.

    Raises ``PatternTooSlow`` after ``seconds``, and ``PatternError`` if ``pattern`` is not a
    regular expression.
    """
    if len(text) > MAX_TEXT:
        half = MAX_TEXT // 2
        if (span := search(pattern, text[:half], seconds)) is not None:
            return span
        offset = len(text) - half
        span = search(pattern, text[offset:], seconds)
        return span and (span[0] + offset, span[1] + offset)
    try:
        match = _compile(pattern).search(text, timeout=seconds)
    except (TimeoutError, MemoryError) as error:
        limit = "its memory" if isinstance(error, MemoryError) else f"{seconds:g} s"
        raise PatternTooSlow(
            f"the search for the pattern {pattern[:80]!r} in {len(text)} characters exceeded {limit}. "
            "Do not repeat a group that contains a repetition, and give repetitions an upper bound"
        ) from None
    return match.span() if match else None


@functools.lru_cache(maxsize=512)
def _compile(pattern: str) -> regex.Pattern[str]:
    import regex  # takes 30 ms, and most runs search no pattern

    try:
        return regex.compile(_EXTENSIONS.sub(_escape, pattern), regex.MULTILINE | regex.VERSION0)
    except (regex.error, RecursionError, OverflowError, MemoryError) as error:
        raise PatternError(
            f"the pattern {pattern[:80]!r} is not a usable regular expression: {error}"
        ) from None


def _escape(token: re.Match[str]) -> str:
    if token["brace"]:
        return r"\{"
    return r"[\:" if token["posix"] else token[0]
