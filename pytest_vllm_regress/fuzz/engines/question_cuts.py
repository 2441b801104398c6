"""Smaller questions to engines: fewer requests, fewer options, shorter texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...util import codec
from ..finding import Problem
from ..reduce import shorter, without_member
from .engine_question import EVERYWHERE, Request, Turns
from .question_drawing import is_sound

_LEAST = {"max_tokens": 1, "min_tokens": 1, "n": 2, "logprobs": 0, "prompt_logprobs": 0, "seed": 0}
"""The least value of options that are numbers."""


def smaller_questions(question: Turns, problem: Problem) -> Iterator[Turns]:
    """Yield simpler questions, the simplest first: the request that shows the problem alone."""
    if problem.at is not None:
        yield Turns(((question.requests[problem.at],),))
    if len(question.turns) > 1:
        yield from map(Turns, without_member(question.turns))
    if len(question.requests) > 1:
        for number in range(len(question.requests)):
            yield question.with_request(number, None)
    if len(question.turns) > 1:
        yield Turns((question.requests,))
    for number, request in enumerate(question.requests):
        for simpler in _simpler(request):
            if simpler != request and is_sound(simpler):
                yield question.with_request(number, simpler)


def _simpler(request: Request) -> Iterator[Request]:
    unusual = sorted(request.options.keys() - EVERYWHERE)
    if len(unusual) > 2:
        for name in unusual:
            yield request.without(*(other for other in unusual if other != name))
    for name in unusual:
        yield request.without(name)
    for usual in ({"adapter": None}, {"salt": ""}, {"abort_after": None}, {"priority": None}):
        yield codec.replace(request, **usual)
    yield codec.replace(request, said=request.said[:1])
    yield codec.replace(request, ends=True)
    yield codec.replace(request.without("n"), said=request.said[:1])
    yield request.with_options(temperature=0.0)
    yield from (codec.replace(request, prompt=text) for text in shorter(request.prompt) if text)
    for at, text in enumerate(request.said):
        for said in filter(None, shorter(text)):
            yield codec.replace(request, said=(*request.said[:at], said, *request.said[at + 1 :]))
    for name, value in request.options.items():
        for simpler in _values(name, value):
            yield request.with_options(**{name: simpler})


def _values(name: str, value: Any) -> Iterator[Any]:
    if isinstance(value, list) and len(value) > 1:
        yield from without_member(value)
    elif name in _LEAST:
        numbers = (_LEAST[name], 1, 2, value // 2, value - 1)
        yield from dict.fromkeys(one for one in numbers if _LEAST[name] <= one < value)
