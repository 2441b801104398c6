"""Observations: what one run of a test showed, in parts. What is judged is what is stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ..errors import Kind, Part, Parts
from ..util.text import truncate_middle

MAX_PART = 120_000
"""Maximum characters of a part; the middle of a longer one is cut out.

A part holds at least one complete log window.
"""
MAX_SUMMARY = 2_000
MAX_AT_WORK = 50
TEST = "test"
"""Phase of an error in the test's own code."""
FAILURES = (Kind.EXCEPTION, Kind.WRONG_RESULT, Kind.HANG, Kind.CRASH, Kind.ENGINE_DEATH)
"""The kinds of failure that a case may document."""


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """A positive control: what the test requires to be at work (``what``), and whether it was
    (``held``)."""

    what: str
    held: bool


@dataclasses.dataclass(frozen=True)
class Observation:
    """What one leg of a test did. ``summary`` is one line for people; ``claim`` names the versions
    or devices if it is not applicable.

    Parts come masked from the caller and are truncated here, so that judging now and judging again
    later see the same text.
    """

    kind: Kind
    phase: str
    summary: str = ""
    parts: Parts = dataclasses.field(default_factory=lambda: MappingProxyType({}), hash=False)
    at_work: tuple[Mechanism, ...] = ()
    claim: str = ""

    def __post_init__(self) -> None:
        parts = {
            Part(part): truncate_middle(text, MAX_PART) for part, text in self.parts.items() if text
        }
        object.__setattr__(self, "kind", Kind(self.kind))
        object.__setattr__(self, "parts", MappingProxyType(parts))
        object.__setattr__(self, "summary", truncate_middle(self.summary, MAX_SUMMARY))
        object.__setattr__(self, "at_work", self.at_work[:MAX_AT_WORK])

    @property
    def absent(self) -> str:
        """Return what should have been at work but was not; empty if everything was."""
        return "; ".join(mechanism.what for mechanism in self.at_work if not mechanism.held)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the result file."""
        return {
            "kind": self.kind.value,
            "phase": self.phase,
            "summary": self.summary,
            "parts": {part.value: text for part, text in self.parts.items()},
            "at_work": [dataclasses.asdict(mechanism) for mechanism in self.at_work],
            "claim": self.claim,
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Observation:
        """Create it from what ``to_json`` returned; the caller has checked it against the schema."""
        return cls(
            Kind(plain["kind"]),
            plain["phase"],
            plain["summary"],
            {Part(part): text for part, text in plain["parts"].items()},
            tuple(Mechanism(**mechanism) for mechanism in plain["at_work"]),
            plain["claim"],
        )
