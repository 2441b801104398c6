"""What a documented failure looks like, and where in what was seen it is found."""

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
"""Where a symptom is looked for when the case does not say: narrow, so that nothing else can prove it."""


@dataclasses.dataclass(frozen=True)
class Match:
    """Where the pattern was found: the part, the number of its line (from 1), the line, and the matching text."""

    part: Part
    number: int
    line: str
    text: str

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the result file."""
        return {"part": self.part.value, "number": self.number, "line": self.line, "text": self.text}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Match:
        """What ``to_json`` wrote."""
        return cls(Part(plain["part"]), plain["number"], plain["line"], plain["text"])


@dataclasses.dataclass(frozen=True)
class Symptom:
    """What the failure looks like. ``kinds`` and ``phases`` (import, start, ready, request, stop, probe) have at least one each.

    ``where``: the parts in which the pattern is looked for, in this order; empty for those of ``WHERE``.
    """

    kinds: tuple[Kind, ...]
    phases: tuple[str, ...]
    pattern: str
    where: tuple[Part, ...] = ()

    @property
    def kind(self) -> str:
        """The kinds in words."""
        return " or ".join(self.kinds)

    def parts_for(self, kind: Kind) -> tuple[Part, ...]:
        """The parts in which the pattern counts for a failure of this kind."""
        return self.where or WHERE.get(kind, ())

    def find(self, observed: Observation) -> Match | None:
        """The first place in the parts that count, where the pattern matches."""
        for part in self.parts_for(observed.kind):
            text = observed.parts.get(part, "")
            if (span := search(self.pattern, text)) is not None:
                return _match(part, text, *span)
        return None


def search(pattern: str, text: str) -> tuple[int, int] | None:
    """The first place in ``text`` that a case's pattern matches (MULTILINE). The only place where such a pattern is searched.

    Raises ``PatternTooSlow`` for one that is not searched to the end in ``patterns.SECONDS``.
    """
    return patterns.search(pattern, text)


def _match(part: Part, text: str, start: int, end: int) -> Match:
    line = text[text.rfind("\n", 0, start) + 1 :].partition("\n")[0]
    return Match(part, text.count("\n", 0, start) + 1, line[:500], text[start:end][:500])
