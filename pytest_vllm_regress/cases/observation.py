"""Observations: what one run of a test showed, in parts. What is judged is what is stored."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec.structs import force_setattr

from ..errors import Cause, Kind, Part, Parts
from ..util.codec import Document, Meta
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
Line = Annotated[str, Meta(max_length=1000)]
Text = Annotated[str, Meta(max_length=200_000)]


class Mechanism(Document, frozen=True):
    """A positive control (``vllm_at_work``)."""

    what: Line
    """What was said to be at work."""
    held: bool
    """Whether it was."""


class Match(Document, frozen=True):
    """Where a pattern matched."""

    part: Part
    """The part of the observation: exception, traceback, assertion, answer, log, stacks or exit."""
    number: Annotated[int, Meta(ge=1)]
    """Number of the line in the part, from 1."""
    line: Line
    """The line."""
    text: Line
    """The text in the line that the pattern matched."""


class Observation(Document, frozen=True, omit_defaults=False):
    """What one leg of a test did.

    Parts come masked from the caller and are truncated here, so that judging now and judging again
    later see the same text.
    """

    kind: Kind
    """exception, wrong-result, hang, crash, engine-death, passed, not-applicable, limit or usage."""
    phase: Line
    """The phase in which it happened."""
    summary: Text = ""
    """One line about it."""
    parts: Parts = msgspec.field(default_factory=dict)
    """The text of each part, masked and bounded."""
    at_work: tuple[Mechanism, ...] = ()
    """Positive controls (`vllm_at_work`) of the test."""
    claim: Text = ""
    """The versions or devices that make the test not applicable; else empty."""
    cause: Cause | None = None
    """What kind of reason the claim is: release, harness or package; null without a claim."""

    def __post_init__(self) -> None:
        parts = {part: truncate_middle(text, MAX_PART) for part, text in self.parts.items() if text}
        force_setattr(self, "parts", parts)
        force_setattr(self, "summary", truncate_middle(self.summary, MAX_SUMMARY))
        force_setattr(self, "at_work", self.at_work[:MAX_AT_WORK])

    @property
    def absent(self) -> str:
        """What should have been at work but was not; empty if everything was."""
        return "; ".join(mechanism.what for mechanism in self.at_work if not mechanism.held)
