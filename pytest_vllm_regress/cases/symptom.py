"""Symptoms: what a documented failure looks like, and where it is found in an observation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ..errors import Kind, Part
from ..util import patterns
from .observation import Observation

WHERE: Mapping[Kind, tuple[Part, ...]] = MappingProxyType(
    {
        Kind.EXCEPTION: (Part.EXCEPTION,),
        Kind.WRONG_RESULT: (Part.ASSERTION,),
        Kind.HANG: (Part.STACKS, Part.LOG),
        Kind.CRASH: (Part.EXIT, Part.EXCEPTION, Part.LOG),
        Kind.ENGINE_DEATH: (Part.EXCEPTION, Part.LOG),
    }
)
"""Parts that are searched if the case names none: few, so that nothing else can prove it."""


@dataclasses.dataclass(frozen=True)
class Match:
    """Where a pattern matched: the part, the line number (from 1), the line, and the matching text."""

    part: Part
    number: int
    line: str
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the result file."""
        return {
            "part": self.part.value,
            "number": self.number,
            "line": self.line,
            "text": self.text,
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Match:
        """Create it from what ``to_json`` returned."""
        return cls(Part(plain["part"]), plain["number"], plain["line"], plain["text"])


@dataclasses.dataclass(frozen=True)
class Symptom:
    """What a failure looks like. ``kinds`` and ``phases`` (import, start, ready, request, stop,
    probe) are not empty.

    ``where``: the parts that are searched for the pattern, in this order; empty for those of
    ``WHERE``.
    """

    kinds: tuple[Kind, ...]
    phases: tuple[str, ...]
    pattern: str
    where: tuple[Part, ...] = ()

    @property
    def kind(self) -> str:
        """Return the kinds in words."""
        return " or ".join(self.kinds)

    def parts_for(self, kind: Kind) -> tuple[Part, ...]:
        """Return the parts that are searched for a failure of this kind."""
        return self.where or WHERE.get(kind, ())

    def find(self, observed: Observation) -> Match | None:
        """Return the first match in the parts that are searched."""
        for part in self.parts_for(observed.kind):
            text = observed.parts.get(part, "")
            if (span := search(self.pattern, text)) is not None:
                return _match(part, text, *span)
        return None


def search(pattern: str, text: str) -> tuple[int, int] | None:
    """Return the span of the first match of a case's pattern (MULTILINE). Verdicts, lint and
    impostors search with this function; a running wait follows the log with
    ``engines/processes/logs.py``.

    Raises ``PatternError`` where it cannot be searched within ``patterns.SECONDS``.
    """
    return patterns.search(pattern, text)


def _match(part: Part, text: str, start: int, end: int) -> Match:
    line = text[text.rfind("\n", 0, start) + 1 :].partition("\n")[0]
    return Match(part, text.count("\n", 0, start) + 1, line[:500], text[start:end][:500])
