"""What a backend's answers about one schema amount to: a pure function of the texts asked about and the reply."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Any

from jsonschema.exceptions import best_match
from jsonschema.protocols import Validator

from ..schemas import validator

NOT_JSON = "not JSON"
MOST_SHOWN = 120
_MOST_DIGITS = 4000
_LEVELS = ("by characters", "by tokens")


class Outcome(StrEnum):
    """What became of a schema, the worst last."""

    PASSING = "passing"
    COMPILE_ERROR = "compile error"
    REFUSED_VALID = "refused valid"
    ACCEPTED_INVALID = "accepted invalid"
    DEAD_END = "dead end"
    STATE_LOST = "state lost"
    CRASH = "crash"
    OUT_OF_MEMORY = "out of memory"
    TIME_OUT = "time-out"


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked about a schema: texts that satisfy it, texts that do not, and how many seeded walks of at most ``max_tokens``."""

    schema: Mapping[str, Any]
    valid: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()
    walks: int = 2
    seed: int = 0
    max_tokens: int = 60

    @property
    def checks(self) -> int:
        """Answers that the question asks for: one to compile, two levels for each text, each walk, and the state sent."""
        return 1 + 2 * len(self.valid) + 2 * len(self.invalid) + self.walks + bool(self.walks)


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that is wrong. ``key`` tells kinds of one outcome apart: the keyword that a text violates, the kind of an exception,
    the level that refuses. ``text`` is the instance, where there is one; ``words`` say it all in a line."""

    outcome: Outcome
    key: str
    words: str
    text: str | None = None


def problems(question: Question, reply: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Everything wrong in a reply of ``hosts.grammar.check_schema``, the worst first."""
    found = [
        *_refused(question, reply),
        *_accepted(question, reply),
        *_walked(question, reply),
        *_carried(reply),
        *_raised(reply),
    ]
    order = list(Outcome)
    return tuple(sorted(found, key=lambda each: -order.index(each.outcome)))


def violated(judge: Validator, text: str) -> tuple[str, str] | None:
    """The keyword that a text violates and the words for it; None for a text that satisfies the schema."""
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_number)
    except json.JSONDecodeError as error:
        return f"{NOT_JSON}: {error.msg.removesuffix(' at')}", str(error)
    except ValueError as error:
        return NOT_JSON, str(error)
    worst = best_match(judge.iter_errors(value))
    return None if worst is None else (str(worst.validator), str(worst.message))


def _number(text: str) -> int | float:
    """A number with a fraction or an exponent. Floats end at 1.8e308, JSON does not: 1e400 is an integer."""
    exact = Decimal(text)
    whole = exact.adjusted() < _MOST_DIGITS and exact == exact.to_integral_value()
    return int(exact) if whole and math.isinf(float(text)) else float(text)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _refused(question: Question, reply: Mapping[str, Any]) -> Iterable[Problem]:
    for text, places in zip(question.valid, reply["valid"], strict=False):
        levels = [level for level, at in zip(_LEVELS, places, strict=True) if at is not None]
        if levels:
            at = next(at for at in places if at is not None)
            where = "at its end" if at >= len(text) else f"at {text[at]!a} (character {at})"
            key = "both ways" if len(levels) == 2 else levels[0]
            yield Problem(Outcome.REFUSED_VALID, key, f"refuses {quoted(text)} {where}, {' and '.join(levels)}", text)


def _accepted(question: Question, reply: Mapping[str, Any]) -> Iterable[Problem]:
    for text, places in zip(question.invalid, reply["invalid"], strict=False):
        levels = [level for level, at in zip(_LEVELS, places, strict=True) if at is None]
        if levels and (wrong := violated(validator(question.schema), text)):
            yield Problem(
                Outcome.ACCEPTED_INVALID, wrong[0], f"accepts {quoted(text)} {' and '.join(levels)}: {wrong[1]}", text
            )


def _walked(question: Question, reply: Mapping[str, Any]) -> Iterable[Problem]:
    judge = validator(question.schema)
    for number, walk in enumerate(reply["walks"]):
        text = walk["text"]
        if walk["end"] == "dead end":
            yield Problem(Outcome.DEAD_END, "walk", f"no token is allowed after {quoted(text)} (walk {number})", text)
        elif walk["end"] == "finished" and (wrong := violated(judge, text)):
            yield Problem(Outcome.ACCEPTED_INVALID, wrong[0], f"a walk ended in {quoted(text)}: {wrong[1]}", text)


def _carried(reply: Mapping[str, Any]) -> Iterable[Problem]:
    lost = reply["carried"]
    if lost and "step" in lost:
        words = f"the state that was sent allows other tokens at step {lost['step']}: lost {lost['lost']}, gained {lost['gained']}"
        yield Problem(Outcome.STATE_LOST, "masks differ", words)


def _raised(reply: Mapping[str, Any]) -> Iterable[Problem]:
    error = reply["error"]
    if error:
        during = error["during"]
        outcome = {"compile": Outcome.COMPILE_ERROR, "sending the state": Outcome.STATE_LOST}.get(during, Outcome.CRASH)
        place, _, text = during.partition(" text ")
        words = f"{error['type']} in {place}: {first_line(error['message'])}"
        yield Problem(outcome, kind_of(error["type"], error["message"]), words, text or None)


def kind_of(name: str, message: str) -> str:
    """What stays the same in an exception's message when the schema changes: no quoted parts, numbers or brackets."""
    plain = re.sub(r"\{.*\}|\[.*\]|\(.*\)|'[^']*'|\"[^\"]*\"|`[^`]*`|\d+", " ", first_line(message))
    return " ".join([name, *re.findall(r"[A-Za-z]+", plain)[:8]])


def quoted(text: str) -> str:
    """A text for people and terminals: control characters escaped, not too long."""
    plain = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return plain if len(plain) <= MOST_SHOWN else f"{plain[:MOST_SHOWN]}..."


def first_line(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:300]
