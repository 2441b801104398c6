"""What was seen of one run of a test, in parts; what is judged is what is stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ..errors import Kind, Part, Parts
from ..util.text import bounded

MAX_PART = 40_000
"""Characters of a part; of a longer one its beginning and its end are kept."""
MAX_SUMMARY = 2_000
MAX_AT_WORK = 50
FAILURES = (Kind.EXCEPTION, Kind.WRONG_RESULT, Kind.HANG, Kind.CRASH, Kind.ENGINE_DEATH)
"""The kinds that a case may document."""


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """A positive control: what the test wanted to see at work, and whether it was."""

    what: str
    held: bool


@dataclasses.dataclass(frozen=True)
class Observation:
    """What one leg did. ``summary`` is one line for people; ``claim`` says since, until or where for what is not applicable.

    Parts come masked from the caller and are cut to a bound here, so that a verdict given now and one given again later see the same.
    """

    kind: Kind
    phase: str
    summary: str = ""
    parts: Parts = dataclasses.field(default_factory=lambda: MappingProxyType({}), hash=False)
    at_work: tuple[Mechanism, ...] = ()
    claim: str = ""

    def __post_init__(self) -> None:
        kept = {Part(part): bounded(text, MAX_PART) for part, text in self.parts.items() if text}
        object.__setattr__(self, "kind", Kind(self.kind))
        object.__setattr__(self, "parts", MappingProxyType(kept))
        object.__setattr__(self, "summary", bounded(self.summary, MAX_SUMMARY))
        object.__setattr__(self, "at_work", self.at_work[:MAX_AT_WORK])

    @property
    def absent(self) -> str:
        """What should have been at work and was not; empty where all was."""
        return "; ".join(each.what for each in self.at_work if not each.held)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the result file."""
        return {
            "kind": self.kind.value,
            "phase": self.phase,
            "summary": self.summary,
            "parts": {part.value: text for part, text in self.parts.items()},
            "at_work": [dataclasses.asdict(each) for each in self.at_work],
            "claim": self.claim,
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Observation:
        """What ``to_json`` wrote; the caller has checked it against the schema."""
        return cls(
            Kind(plain["kind"]),
            plain["phase"],
            plain["summary"],
            {Part(part): text for part, text in plain["parts"].items()},
            tuple(Mechanism(**each) for each in plain["at_work"]),
            plain["claim"],
        )
