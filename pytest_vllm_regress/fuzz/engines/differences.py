"""Where two answers to one request differ, in the order of what users notice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

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
    return next(iter(_differences(left, right)), None)


def inconsistency(request: Request, answer: SideAnswer | None) -> Problem | None:
    """Return in which way an answer contradicts itself: its text must be that of its tokens.

    Only answers of ASCII tokens of the byte-level tokenizer are judged, and only those that a
    length ended.
    """
    if answer is None or request.options.get("stop") or request.options.get("detokenize") is False:
        return None
    for choice in answer.choices:
        tokens = choice.token_ids
        if (
            choice.text is None
            or tokens is None
            or choice.finish_reason != "length"
            or any(token >= 0x80 for token in tokens)
        ):
            continue
        if choice.text != bytes(tokens).decode():
            return Problem(
                "text is not that of its tokens", f"{choice.text!r}, tokens {list(tokens)}"
            )
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


def _differences(left: SideAnswer, right: SideAnswer) -> Iterator[Problem]:
    if left.error or right.error:
        if left.error != right.error:
            yield Problem(
                f"{left.error or 'answered'} or {right.error or 'answered'}", _errors(left, right)
            )
        elif left.error in FAULTS:
            yield Problem(f"{left.error} on both sides", left.words)
        return
    partial = left.partial or right.partial
    if partial:
        yield from _beginnings(left, right)
        return
    if len(left.choices) != len(right.choices):
        yield Problem("number of results", f"{len(left.choices)} or {len(right.choices)}")
    pairs = list(zip(left.choices, right.choices, strict=False))
    for compare in (_tokens, _text, _finish, _stop, _logprobs):
        for number, (one, other) in enumerate(pairs):
            for kind, words in compare(one, other):
                yield Problem(kind, f"result {number}: {words}" if len(pairs) > 1 else words)
    if left.tells_prompt and right.tells_prompt:
        yield from _prompts(left.prompt_logprobs, right.prompt_logprobs)


def _errors(left: SideAnswer, right: SideAnswer) -> str:
    return " or ".join(answer.words or f"an answer: {_short(answer)}" for answer in (left, right))


def _short(answer: SideAnswer) -> str:
    return repr([choice.text for choice in answer.choices])[:200]


def _beginnings(left: SideAnswer, right: SideAnswer) -> Iterator[Problem]:
    """An aborted request has a beginning of the whole answer.

    A text that may still become a stop string is held back.
    """
    for one, other in zip(left.choices, right.choices, strict=False):
        if not _begins(one.text, other.text):
            yield Problem("text of an aborted request", f"{one.text!r} or {other.text!r}")
        if not _begins(one.token_ids, other.token_ids):
            yield Problem(
                "token ids of an aborted request", f"{one.token_ids} or {other.token_ids}"
            )


def _begins(one: object, other: object) -> bool:
    if not (isinstance(one, (str, tuple)) and isinstance(other, (str, tuple))):
        return True
    length = min(len(one), len(other))
    return one[:length] == other[:length]


def _tokens(one: Choice, other: Choice) -> Iterator[tuple[str, str]]:
    a, b = one.token_ids, other.token_ids
    if a is not None and b is not None and a != b:
        kind = "number of tokens" if a[: len(b)] == b or b[: len(a)] == a else "token ids"
        yield kind, f"tokens {list(a)} or {list(b)}, texts {one.text!r} or {other.text!r}"


def _text(one: Choice, other: Choice) -> Iterator[tuple[str, str]]:
    if one.text is not None and other.text is not None and one.text != other.text:
        yield "text", f"{one.text!r} or {other.text!r}"


def _finish(one: Choice, other: Choice) -> Iterator[tuple[str, str]]:
    if one.finish_reason != other.finish_reason:
        yield "finish_reason", f"{one.finish_reason!r} or {other.finish_reason!r}"


def _stop(one: Choice, other: Choice) -> Iterator[tuple[str, str]]:
    if one.stop_reason != other.stop_reason:
        yield "stop_reason", f"{one.stop_reason!r} or {other.stop_reason!r}"


def _logprobs(one: Choice, other: Choice) -> Iterator[tuple[str, str]]:
    if one.logprobs is not None and other.logprobs is not None:
        yield from _steps("logprobs", one.logprobs, other.logprobs)
    a, b = one.sampled, other.sampled
    if a is None or b is None:
        return
    if len(a) != len(b):
        yield "number of logprobs", f"{len(a)} or {len(b)}"
    elif any(abs(x - y) > TOLERANCE for x, y in zip(a, b, strict=True)):
        yield "values of logprobs", f"{_rounded(a)} or {_rounded(b)}"


def _prompts(one: Logprobs | None, other: Logprobs | None) -> Iterator[Problem]:
    if (one is None) != (other is None):
        yield Problem("prompt_logprobs missing", f"{_count(one)} or {_count(other)} positions")
    elif one is not None and other is not None:
        for kind, words in _steps("prompt_logprobs", one, other):
            yield Problem(kind, words)


def _count(steps: Logprobs | None) -> str:
    return "no" if steps is None else str(len(steps))


def _steps(name: str, one: Logprobs, other: Logprobs) -> Iterator[tuple[str, str]]:
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
