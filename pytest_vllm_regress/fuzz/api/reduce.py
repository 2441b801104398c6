"""Shrink a request: fewer fields, shorter values, as long as the same problem stays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from .drawing.edits import field_at, paths, with_field, without_field
from .oracle import Outcome, Problem, problem
from .question import Question
from .reply import Reply

Ask = Callable[[list[Question]], list[Reply]]
MAX_QUESTIONS = 120
MAX_DEADLY = 24
"""Maximum number of questions if the problem ends the server, which takes seconds to start again.
"""
_DEADLY = (Outcome.ENGINE_DEAD, Outcome.ENGINE_STUCK, Outcome.OUT_OF_MEMORY, Outcome.NO_ANSWER)
_BATCH = 8
_NUMBERS = (0, 1, -1, 1000, 2**31, 2**63, 2**64, 2**70)


def reduce(question: Question, found: Problem, ask: Ask) -> tuple[Question, Problem]:
    """Return the smallest request that still shows a problem of the same outcome and key."""
    left = MAX_DEADLY if found.outcome in _DEADLY else MAX_QUESTIONS
    size = 1 if found.outcome in _DEADLY else _BATCH
    tried = {question.body}
    while left > 0:
        candidates = (one for one in smaller(question) if one.body not in tried)
        while batch := list(itertools.islice(candidates, min(size, left))):
            left -= len(batch)
            tried.update(one.body for one in batch)
            if same := _first_same(batch, ask(batch), found):
                question, found = same
                break
        else:
            break
    return question, found


def _first_same(
    batch: list[Question], replies: list[Reply], found: Problem
) -> tuple[Question, Problem] | None:
    for question, reply in zip(batch, replies, strict=True):
        seen = problem(question, reply)
        if seen and seen.group == found.group:
            return question, seen
    return None


def smaller(question: Question) -> Iterator[Question]:
    """Yield requests with a smaller body, those with the largest cuts first."""
    try:
        body = question.value()
    except ValueError:
        if question.body:
            half = len(question.body) // 2
            yield from (
                Question(question.server, question.method, question.path, question.route, text)
                for text in (question.body[:half], question.body[half:], question.body[:-1])
                if text
            )
        return
    if question.body is None:
        return
    seen: set[str | None] = {question.body}
    for value in _smaller(body):
        try:
            candidate = question.with_value(value)
        except (RecursionError, ValueError):
            continue
        if candidate.body not in seen:
            seen.add(candidate.body)
            yield candidate


def _smaller(body: Any) -> Iterator[Any]:
    try:
        places = list(itertools.islice(paths(body), 300))
    except RecursionError:
        return
    for path in places:
        if path != ("model",):
            yield without_field(body, path)
    for path in places:
        if path != ("model",):
            for value in _simpler(field_at(body, path)):
                yield with_field(body, path, value)


def _simpler(value: Any) -> Iterator[Any]:
    """Yield simpler values of the same type."""
    if isinstance(value, str):
        if value:
            yield ""
        if len(value) > 1:
            yield from ("a", value[: len(value) // 2])
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, (int, float)):
        yield from (number for number in _NUMBERS if abs(number) < abs(value))
    elif isinstance(value, list) and len(value) > 1:
        yield value[:1]
