"""Where two answers to one request differ, in the order of what users notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..finding import Problem
from .engine_question import Request
from .side_answer import FAULTS, LEAST, Choice, Logprobs, SideAnswer

TOLERANCE = 2e-3
"""Problem of log-probabilities that rounding explains."""


def difference(left: SideAnswer | None, right: SideAnswer | None) -> Problem | None:
    """Return the most serious difference between two answers; None if they agree.

    A field that one side lacks is not compared.
    """
    if left is None or right is None:
        known = left or right
        return Problem(known.error, known.words) if known and known.error in FAULTS else None
    return next((Problem(*found) for found in _differences(left, right)), None)


def inconsistency(request: Request, answer: SideAnswer | None) -> Problem | None:
    """Return in which way an answer contradicts itself: its text must be that of its tokens.

    Only answers of ASCII tokens of the byte-level tokenizer are judged, and only those that a
    length ended.
    """
    if answer is None or request.options.get("stop") or request.options.get("detokenize") is False:
        return None
    for choice in answer.choices:
        text, tokens = choice.text, choice.token_ids
        if text is None or tokens is None or choice.finish_reason != "length":
            continue
        if all(token < 0x80 for token in tokens) and text != bytes(tokens).decode():
            return Problem("text is not that of its tokens", f"{text!r}, tokens {list(tokens)}")
    return None


def foreign_cache(
    requests: Sequence[Request], number: int, answer: SideAnswer | None
) -> Problem | None:
    """Return that a request found cached tokens though no request before it, or beside it, had its
    adapter and its salt.

    One of several results of a request finds the blocks of the others.
    """
    request = requests[number]
    if answer is None or not answer.cached or request.options.get("n", 1) > 1:
        return None
    others = [other for at, other in enumerate(requests) if at != number]
    if any((other.adapter, other.salt) == (request.adapter, request.salt) for other in others):
        return None
    return Problem(
        "cached tokens of another adapter or salt", f"{answer.cached} tokens from the cache"
    )


Found = Iterator[tuple[str, str]]
"""Kind and words of each difference."""


def _differences(left: SideAnswer, right: SideAnswer) -> Found:
    pairs = list(zip(left.choices, right.choices, strict=False))
    if left.error or right.error:
        if left.error != right.error:
            kind = " or ".join(answer.error or "answered" for answer in (left, right))
            yield kind, " or ".join(map(_outcome, (left, right)))
        elif left.error in FAULTS:
            yield f"{left.error} on both sides", left.words
        return
    if left.partial or right.partial:
        for one, other in pairs:
            yield from _beginnings(one, other)
        return
    if len(left.choices) != len(right.choices):
        yield "number of results", f"{len(left.choices)} or {len(right.choices)}"
    comparisons: list[Callable[[Choice, Choice], Found]] = [_tokens]
    comparisons += [partial(_field, name) for name in ("text", "finish_reason", "stop_reason")]
    for compare in (*comparisons, _logprobs):
        for number, (one, other) in enumerate(pairs):
            for kind, words in compare(one, other):
                yield kind, f"result {number}: {words}" if len(pairs) > 1 else words
    a, b = left.prompt_logprobs, right.prompt_logprobs
    if not (left.tells_prompt and right.tells_prompt):
        return
    if (a is None) != (b is None):
        yield "prompt_logprobs missing", f"{_count(a)} or {_count(b)} positions"
    else:
        yield from _steps("prompt_logprobs", a, b)


def _outcome(answer: SideAnswer) -> str:
    texts = repr([choice.text for choice in answer.choices])[:200]
    return answer.words or f"an answer: {texts}"


def _beginnings(one: Choice, other: Choice) -> Found:
    """Compare results of an aborted request, which has a beginning of the whole answer.

    A text that may still become a stop string is held back.
    """
    for name, words in (("text", "text"), ("token_ids", "token ids")):
        a, b = getattr(one, name), getattr(other, name)
        if a is not None and b is not None and not _begins(a, b):
            yield f"{words} of an aborted request", f"{a!r} or {b!r}"


def _begins(one: Any, other: Any) -> bool:
    """Return whether one is a beginning of the other."""
    length = min(len(one), len(other))
    return bool(one[:length] == other[:length])


def _tokens(one: Choice, other: Choice) -> Found:
    a, b = one.token_ids, other.token_ids
    if a is not None and b is not None and a != b:
        kind = "number of tokens" if _begins(a, b) else "token ids"
        yield kind, f"tokens {list(a)} or {list(b)}, texts {one.text!r} or {other.text!r}"


def _field(name: str, one: Choice, other: Choice) -> Found:
    a, b = getattr(one, name), getattr(other, name)
    if a != b and (name != "text" or None not in (a, b)):
        yield name, f"{a!r} or {b!r}"


def _logprobs(one: Choice, other: Choice) -> Found:
    yield from _steps("logprobs", one.logprobs, other.logprobs)
    a, b = one.sampled, other.sampled
    if a is None or b is None:
        return
    if len(a) != len(b):
        yield "number of logprobs", f"{len(a)} or {len(b)}"
    elif any(abs(x - y) > TOLERANCE for x, y in zip(a, b, strict=True)):
        yield "values of logprobs", f"{_rounded(a)} or {_rounded(b)}"


def _count(steps: Logprobs | None) -> str:
    return "no" if steps is None else str(len(steps))


def _steps(name: str, one: Logprobs | None, other: Logprobs | None) -> Found:
    if one is None or other is None:
        return
    if len(one) != len(other):
        yield f"number of {name}", f"{len(one)} or {len(other)} positions"
        return
    for position, (a, b) in enumerate(zip(map(_possible, one), map(_possible, other), strict=True)):
        if a.keys() != b.keys():
            yield f"token ids of {name}", f"position {position}: {sorted(a)} or {sorted(b)}"
            return
        if any(abs(value - b[token]) > TOLERANCE for token, value in a.items()):
            yield f"values of {name}", f"position {position}: {a} or {b}"
            return


def _possible(step: Mapping[int, float] | None) -> dict[int, float]:
    """Return the tokens that a mask allows. Which of the others are listed, is left to chance."""
    return {token: value for token, value in (step or {}).items() if value > LEAST}


def _rounded(values: tuple[float, ...]) -> list[float]:
    return [round(value, 4) for value in values]
