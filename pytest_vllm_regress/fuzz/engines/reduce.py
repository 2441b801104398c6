"""Shrink a question: fewer requests, fewer options, shorter texts, as long as the same kind of
difference stays."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from .draw import is_sound
from .observed import EVERYWHERE, Ask, Observed
from .request import Question, Request

MAX_QUESTIONS = 120
"""Maximum number of questions for one reduction."""
MAX_DEADLY = 16
"""The same if each question costs an engine."""


def reduce(observed: Observed, ask: Ask, deadly: bool = False) -> Observed:
    """Return the smallest question that still shows a difference of the same kind."""
    left = MAX_DEADLY if deadly else MAX_QUESTIONS
    tried = {observed.question.to_text()}
    alone = Question(((observed.question.requests[observed.number],),))
    candidates: Iterator[Question] = itertools.chain((alone,), smaller(observed.question))
    while left > 0 and (question := next(candidates, None)) is not None:
        text = question.to_text()
        if text in tried:
            continue
        tried.add(text)
        left -= 1
        same = [seen for seen in ask(question) if seen.difference.kind == observed.difference.kind]
        if same:
            observed, candidates = same[0], smaller(question)
    return observed


def smaller(question: Question) -> Iterator[Question]:
    """Yield simpler questions, the simplest first."""
    if len(question.turns) > 1:
        yield from (
            Question(question.turns[:at] + question.turns[at + 1 :])
            for at in range(len(question.turns))
        )
    if len(question.requests) > 1:
        for number in range(len(question.requests)):
            yield question.with_request(number, None)
    if len(question.turns) > 1:
        yield Question((question.requests,))
    for number, request in enumerate(question.requests):
        for simpler in _simpler(request):
            if is_sound(simpler):
                yield question.with_request(number, simpler)


def _simpler(request: Request) -> Iterator[Request]:
    if len(request.options) > 4:
        for name in sorted(request.options.keys() - EVERYWHERE):
            yield request.without(*request.options.keys() - EVERYWHERE - {name})
    for name in request.options:
        if name not in EVERYWHERE:
            yield request.without(name)
    plain = (
        dataclasses.replace(request, adapter=None),
        dataclasses.replace(request, salt=""),
        dataclasses.replace(request, abort_after=None),
        dataclasses.replace(request, priority=None),
    )
    yield from (simpler for simpler in plain if simpler != request)
    if len(request.said) > 1:
        yield dataclasses.replace(request, said=request.said[:1])
    if not request.ends:
        yield dataclasses.replace(request, ends=True)
    if request.options.get("n"):
        yield dataclasses.replace(request.without("n"), said=request.said[:1])
    if request.options.get("temperature") not in (0, 0.0):
        yield request.with_options(temperature=0.0)
    yield from _simpler_texts(request)
    yield from _simpler_values(request)


def _simpler_texts(request: Request) -> Iterator[Request]:
    for prompt in _shorter(request.prompt, "a"):
        if prompt:
            yield dataclasses.replace(request, prompt=prompt)
    for at, text in enumerate(request.said):
        for said in _shorter(text, "a"):
            if said:
                yield dataclasses.replace(
                    request, said=(*request.said[:at], said, *request.said[at + 1 :])
                )


def _shorter(text: str, simplest: str) -> Iterator[str]:
    if len(text) > 1:
        yield simplest
        yield text[len(text) // 2 :]
        yield text[: len(text) // 2]
        if len(text) <= 24:
            yield from (text[:at] + text[at + 1 :] for at in range(len(text)))


def _simpler_values(request: Request) -> Iterator[Request]:
    for name, value in request.options.items():
        for simpler in _values(name, value):
            yield request.with_options(**{name: simpler})


def _values(name: str, value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        return
    if isinstance(value, list) and len(value) > 1:
        yield from (value[:at] + value[at + 1 :] for at in range(len(value)))
    elif isinstance(value, int) and name in (
        "max_tokens",
        "min_tokens",
        "n",
        "logprobs",
        "prompt_logprobs",
        "seed",
    ):
        least = 2 if name == "n" else 0 if name in ("logprobs", "prompt_logprobs", "seed") else 1
        yield from dict.fromkeys(
            number for number in (least, 1, 2, value // 2, value - 1) if least <= number < value
        )
