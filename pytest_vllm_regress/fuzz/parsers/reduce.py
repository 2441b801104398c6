"""Shrink what shows a problem: first the meaning, then the cuts, as long as the same kind of
problem stays."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from .formats import Format
from .meaning import Call, Meaning
from .question import Ask, Observed, Question, observations

MAX_QUESTIONS = 150
"""Maximum number of questions for one reduction."""
BATCH = 12
"""Number of candidates that are asked at once."""


def reduce(observed: Observed, form: Format, ask: Ask) -> Observed:
    """Return the smallest variant that still shows a problem of the same key, in a cut of the same
    kind."""
    reduction = _Reduction(observed, form, ask)
    reduction.shrink_meaning()
    reduction.merge_pieces()
    return reduction.smallest


class _Reduction:
    """Candidates are asked several at once, because a request takes longer than most answers."""

    def __init__(self, observed: Observed, form: Format, ask: Ask) -> None:
        self.smallest, self._form, self._ask = observed, form, ask
        self._left = MAX_QUESTIONS
        self._tried: set[str] = set()

    def shrink_meaning(self) -> None:
        """Accept the first simpler meaning that keeps the problem, until none does."""
        while self._first_that_keeps(self._simpler_questions()):
            pass

    def _simpler_questions(self) -> Iterator[Question]:
        kinds = (self.smallest.cut[0],) if self.smallest.cut else ()
        for meaning in smaller(self.smallest.question.meaning):
            text = meaning.to_text()
            if text not in self._tried and self._form.fitted(meaning) == meaning:
                self._tried.add(text)
                yield Question.of(meaning, self._form, kinds)

    def merge_pieces(self) -> None:
        """Join neighbouring pieces, many at first.

        A cut that is not needed hides what the problem depends on.
        """
        if self.smallest.cut is None:
            return
        size = len(self.smallest.cut[1].pieces)
        while size > 1:
            if not self._first_that_keeps(self._joined(size)):
                size = size // 2 if size > 2 else 0
            size = min(size, len(self.smallest.cut[1].pieces))
        if not self.smallest.cut[1].end_alone:
            kind, pieces = self.smallest.cut
            self._first_that_keeps(
                iter(
                    [
                        self.smallest.question.with_cut(
                            kind, dataclasses.replace(pieces, end_alone=True)
                        )
                    ]
                )
            )

    def _joined(self, size: int) -> Iterator[Question]:
        """Yield the question with each run of ``size`` pieces joined."""
        assert self.smallest.cut is not None
        kind, current = self.smallest.cut
        pieces = current.pieces
        for at in range(len(pieces) - size, -1, -1):
            joined = (*pieces[:at], "".join(pieces[at : at + size]), *pieces[at + size :])
            yield self.smallest.question.with_cut(kind, dataclasses.replace(current, pieces=joined))

    def _first_that_keeps(self, questions: Iterator[Question]) -> bool:
        """Accept the first question that shows the same problem. Return whether one does."""
        while self._left > 0 and (
            batch := list(itertools.islice(questions, min(BATCH, self._left)))
        ):
            self._left -= len(batch)
            for question, reply in zip(batch, self._ask(batch), strict=True):
                for seen in observations(question, reply):
                    if seen.key == self.smallest.key and (seen.cut is None) == (
                        self.smallest.cut is None
                    ):
                        self.smallest = seen
                        return True
        return False


def smaller(meaning: Meaning) -> Iterator[Meaning]:
    """Return simpler meanings, the simplest first."""
    for at in range(len(meaning.calls)):
        yield dataclasses.replace(meaning, calls=(*meaning.calls[:at], *meaning.calls[at + 1 :]))
    for text in _shorter(meaning.content):
        yield dataclasses.replace(meaning, content=text)
    for text in _shorter(meaning.reasoning):
        yield dataclasses.replace(meaning, reasoning=text)
    if meaning.style != "spaced":
        yield dataclasses.replace(meaning, style="spaced")
    for at, call in enumerate(meaning.calls):
        for simpler in _simpler_calls(call):
            yield dataclasses.replace(
                meaning, calls=(*meaning.calls[:at], simpler, *meaning.calls[at + 1 :])
            )


def _simpler_calls(call: Call) -> Iterator[Call]:
    arguments = dict(call.arguments)
    if arguments:
        yield from (
            Call(call.name, simplest)
            for simplest in ({}, {"count": 1}, {"city": "a"})
            if simplest != arguments
        )
    if call.name == "get_weather":
        yield Call("add", arguments)
    for key in arguments:
        yield Call(call.name, {other: value for other, value in arguments.items() if other != key})
    for key, value in arguments.items():
        for simpler in _simpler(value):
            yield Call(call.name, {**arguments, key: simpler})


def _simpler(value: Any) -> Iterator[Any]:
    """Return simpler values of the same type."""
    if isinstance(value, str):
        yield from _shorter(value)
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int):
        yield from (
            number for number in (0, 1, 2, -1) if abs(number) < abs(value) or (value < 0 <= number)
        )
    elif isinstance(value, float):
        yield from (
            number
            for number in (0.5, 1.5, -0.5)
            if number != value and abs(value) not in (0.5, 1.5)
        )
    elif isinstance(value, list):
        yield from (value[:at] + value[at + 1 :] for at in range(len(value)))
        for at, member in enumerate(value):
            yield from (
                [*value[:at], simpler, *value[at + 1 :]] for simpler in _simpler_members(member)
            )
    else:
        yield from (
            {other: member for other, member in value.items() if other != key} for key in value
        )
        for key, member in value.items():
            yield from ({**value, key: simpler} for simpler in _simpler_members(member))


def _simpler_members(value: Any) -> Iterator[Any]:
    """Members have no declared type, so they may become numbers."""
    if value != 0 or isinstance(value, bool):
        yield 0
    yield from _simpler(value)


def _shorter(text: str) -> Iterator[str]:
    if not text:
        return
    yield ""
    if text != "a":
        yield "a"
    half = len(text) // 2
    if half:
        yield text[half:]
        yield text[:half]
    if len(text) > 1:
        yield from (text[:at] + text[at + 1 :] for at in range(min(len(text), 40)))
