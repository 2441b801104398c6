"""The oracle: decide, from a question and a backend's reply alone, what is wrong with the reply.

Whether a text satisfies the schema is asked in one request to ``judge``, a process with limits: the
schema may come from a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

from ...util.codec import Document, Meta
from ..finding import Problem
from .schema_judge import Violation, judge

FINISHED = "finished"
MAX_SHOWN = 120
_LEVELS = ("by characters", "by tokens")


class Outcome(StrEnum):
    """Outcome of a question, from best to worst."""

    PASSING = "passing"
    COMPILE_ERROR = "compile error"
    REFUSED_VALID = "refused valid"
    ACCEPTED_INVALID = "accepted invalid"
    DEAD_END = "dead end"
    STATE_LOST = "state lost"
    CRASH = "crash"
    OUT_OF_MEMORY = "out of memory"
    TIME_OUT = "time-out"


class SchemaQuestion(Document, frozen=True):
    """A schema with texts that satisfy it, texts that do not, and the number of seeded walks of at
    most ``max_tokens`` tokens."""

    schema: Mapping[str, Any]
    valid: Annotated[tuple[str, ...], Meta(max_length=100)] = ()
    invalid: Annotated[tuple[str, ...], Meta(max_length=100)] = ()
    walks: Annotated[int, Meta(ge=0, le=100)] = 2
    seed: Annotated[int, Meta(ge=0)] = 0
    max_tokens: Annotated[int, Meta(ge=1, le=10000)] = 60

    @property
    def checks(self) -> int:
        """Number of checks: compilation, two levels for each text, each walk, and the transfer of
        the state."""
        return 1 + 2 * len(self.valid) + 2 * len(self.invalid) + self.walks + bool(self.walks)


def problems(question: SchemaQuestion, reply: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Return all problems in a reply of ``hosts.grammar.check_schema``, the worst first.

    Raises ``NotJudged`` if jsonschema cannot judge the schema within the limits.
    """
    violations = _violations(question, reply)
    problems_found = [
        *_refused(question, reply),
        *_accepted(question, reply, violations),
        *_walked(reply, violations),
        *_state_lost(reply),
        *_raised(reply),
    ]
    return worst_first(problems_found)


def worst_first(found: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems in the order of their outcomes, the worst first."""
    order = [str(outcome) for outcome in Outcome]
    return tuple(sorted(found, key=lambda problem: -order.index(problem.kind)))


def _levels(positions: Sequence[int | None], *, accepted: bool) -> list[str]:
    """Return the levels that accept a text, or that refuse it at some position."""
    pairs = zip(_LEVELS, positions, strict=True)
    return [level for level, position in pairs if (position is None) is accepted]


def _refused(question: SchemaQuestion, reply: Mapping[str, Any]) -> Iterable[Problem]:
    for text, positions in zip(question.valid, reply["valid"], strict=False):
        if levels := _levels(positions, accepted=False):
            first = next(position for position in positions if position is not None)
            at_end = first >= len(text)
            where = "at its end" if at_end else f"at {text[first]!a} (character {first})"
            key = "both ways" if len(levels) == 2 else levels[0]
            words = f"refuses {printable(text)} {where}, {' and '.join(levels)}"
            yield Problem(Outcome.REFUSED_VALID, words, key, text)


def _violations(
    question: SchemaQuestion, reply: Mapping[str, Any]
) -> Mapping[str, Violation | None]:
    """Return the violation of each text that the backend accepted or wrote."""
    accepted = [
        text
        for text, positions in zip(question.invalid, reply["invalid"], strict=False)
        if None in positions
    ]
    written = [walk["text"] for walk in reply["walks"] if walk["end"] == FINISHED]
    texts = list(dict.fromkeys([*accepted, *written]))
    return dict(zip(texts, judge().violations(question.schema, texts), strict=True))


def _accepted(
    question: SchemaQuestion, reply: Mapping[str, Any], violations: Mapping[str, Violation | None]
) -> Iterable[Problem]:
    for text, positions in zip(question.invalid, reply["invalid"], strict=False):
        levels = _levels(positions, accepted=True)
        if levels and (violation := violations[text]):
            keyword, message = violation
            words = f"accepts {printable(text)} {' and '.join(levels)}: {message}"
            yield Problem(Outcome.ACCEPTED_INVALID, words, keyword, text)


def _walked(
    reply: Mapping[str, Any], violations: Mapping[str, Violation | None]
) -> Iterable[Problem]:
    for number, walk in enumerate(reply["walks"]):
        text = walk["text"]
        if walk["end"] == "dead end":
            words = f"no token is allowed after {printable(text)} (walk {number})"
            yield Problem(Outcome.DEAD_END, words, "walk", text)
        elif walk["end"] == FINISHED and (violation := violations[text]):
            keyword, message = violation
            words = f"a walk ended in {printable(text)}: {message}"
            yield Problem(Outcome.ACCEPTED_INVALID, words, keyword, text)


def _state_lost(reply: Mapping[str, Any]) -> Iterable[Problem]:
    transfer = reply["carried"]
    if transfer and "step" in transfer:
        words = (
            f"the transferred state allows other tokens at step {transfer['step']}: "
            f"lost {transfer['lost']}, gained {transfer['gained']}"
        )
        yield Problem(Outcome.STATE_LOST, words, "masks differ")


def _raised(reply: Mapping[str, Any]) -> Iterable[Problem]:
    error = reply["error"]
    if error:
        during = error["during"]
        outcome = {"compile": Outcome.COMPILE_ERROR, "sending the state": Outcome.STATE_LOST}.get(
            during, Outcome.CRASH
        )
        place, _, text = during.partition(" text ")
        words = f"{error['type']} in {place}: {first_line(error['message'])}"
        yield Problem(outcome, words, error_kind(error["type"], error["message"]), text or None)


def error_kind(name: str, message: str) -> str:
    """Return an exception's type and the words of its message that do not depend on the schema, to
    group similar errors."""
    plain = re.sub(r"\{.*\}|\[.*\]|\(.*\)|'[^']*'|\"[^\"]*\"|`[^`]*`|\d+", " ", first_line(message))
    return " ".join([name, *re.findall(r"[A-Za-z]+", plain)[:8]])


def printable(text: str) -> str:
    """Return the text with control characters escaped, truncated if it is long."""
    plain = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return plain if len(plain) <= MAX_SHOWN else f"{plain[:MAX_SHOWN]}..."


def first_line(text: str) -> str:
    """Return the first line that is not blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:300]
