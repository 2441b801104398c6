"""Answers to a request, in one form for all fronts; what they must be, and where two of them differ,
in the order of what users notice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..drawing import drawn_data
from ..finding import Problem
from .engine_question import Request, is_broken

Logprobs = tuple[Mapping[int, float] | None, ...]
LEAST = -9999.0
"""The least log-probability that a server sends."""
REFUSED, INTERNAL, DEATH, NO_ANSWER, OFF_SCRIPT = (
    "refused",
    "internal error",
    "death of the engine",
    "no answer",
    "script not followed",
)
FAULTS = (INTERNAL, DEATH, NO_ANSWER)
"""Errors that are wrong even if both sides show them."""


@dataclass(frozen=True)
class Choice:
    """One of the ``n`` results. None: this front does not report the field.

    ``logprobs``: for each position the log-probabilities by token. ``sampled``: those of the
    sampled tokens.
    """

    text: str | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: tuple[int, ...] | None = None
    logprobs: Logprobs | None = None
    sampled: tuple[float, ...] | None = None

    def followed_by(self, delta: Choice) -> Choice:
        """Return what a streamed choice and the next delta add up to."""
        whole = {}
        for name, old in vars(self).items():
            new = getattr(delta, name)
            if None in (old, new):
                whole[name] = old if new is None else new
            else:
                whole[name] = new if name.endswith("reason") else old + new
        return Choice(**whole)


@dataclass(frozen=True)
class SideAnswer:
    """The answer to a request.

    Attributes:
        choices: results by index.
        cached: how many of the prompt's tokens came from the prefix cache; None if this side does
            not report it.
        tells_prompt: whether this side tells the log-probabilities of prompts.
        error: a class of errors, instead of an answer. ``words``: its message.
        partial: the request was aborted; the answer is a beginning.
    """

    choices: tuple[Choice, ...] = ()
    prompt_logprobs: Logprobs | None = None
    error: str = ""
    words: str = ""
    partial: bool = False
    tells_prompt: bool = True
    cached: int | None = None


def of_output(output: Mapping[str, Any]) -> SideAnswer:
    """Return the answer in the result of an offline engine."""
    return replace(of_stream([output]), cached=output.get("cached_tokens"))


def of_stream(
    results: Sequence[Mapping[str, Any]], kind: str = "cumulative", partial: bool = False
) -> SideAnswer:
    """Return the answer in the results of an asynchronous engine.

    ``kind``: what they hold, ``delta`` or ``cumulative`` results. ``partial``: it may be aborted.
    """
    prompt: Logprobs | None = None
    for told in (_logprobs(result["prompt_logprobs"]) for result in results):
        if told is not None:
            prompt = (*(prompt or ()), *told) if kind == "delta" else told
    parts = [part for result in results for part in result["outputs"]]
    choices = _by_index(parts, _choice, are_deltas=kind == "delta")
    ended = bool(results) and results[-1]["finished"]
    return SideAnswer(choices, prompt, partial=partial and not ended)


def of_events(events: Iterable[Mapping[str, Any]]) -> SideAnswer:
    """Return the answer in the events of a streamed completion, joined as a client does, or in the
    JSON of a whole one."""
    parts = [part for event in events for part in event["choices"]]
    prompts = [part.get("prompt_logprobs") for part in parts if part["index"] == 0]
    told = [prompt for prompt in prompts if prompt is not None]
    return SideAnswer(_by_index(parts, _served_choice), _logprobs(told[-1] if told else None))


def _by_index(parts: Iterable[Mapping[str, Any]], read: Any, are_deltas: bool = True) -> Any:
    choices: dict[int, Choice] = {}
    for part in parts:
        index, new = part["index"], read(part)
        old = choices.get(index) if are_deltas else None
        choices[index] = old.followed_by(new) if old else new
    return tuple(choices[index] for index in sorted(choices))


def _choice(choice: Mapping[str, Any]) -> Choice:
    tokens = tuple(choice["token_ids"])
    logprobs = _logprobs(choice["logprobs"])
    sampled = None
    if logprobs is not None and len(logprobs) == len(tokens):
        sampled = tuple(
            (step or {}).get(token, LEAST) for step, token in zip(logprobs, tokens, strict=True)
        )
    return Choice(
        choice["text"], choice["finish_reason"], choice["stop_reason"], tokens, logprobs, sampled
    )


def _served_choice(choice: Mapping[str, Any]) -> Choice:
    logprobs = choice.get("logprobs")
    return Choice(
        choice.get("text") or "",
        choice.get("finish_reason"),
        choice.get("stop_reason"),
        sampled=tuple(map(_clamped, logprobs["token_logprobs"])) if logprobs else None,
    )


def _logprobs(steps: Any) -> Logprobs | None:
    """Return log-probabilities by token. Those that a server sends of a prompt are objects."""
    if steps is None:
        return None
    return tuple(
        step
        and {
            int(token): _clamped(entry["logprob"] if isinstance(entry, Mapping) else entry)
            for token, entry in step.items()
        }
        for step in steps
    )


def _clamped(value: float | None) -> float:
    return LEAST if value is None else max(float(value), LEAST)


_DOCUMENTED = frozenset(drawn_data("engine_texts")["documented"])
"""Options whose effect on a script the documentation of SamplingParams says, or that have none."""


def expected(request: Request) -> SideAnswer | None:
    """Return what a scripted request must be answered with, without what the documentation leaves open (token ids,
    log-probabilities); None if it leaves more open."""
    if not request.said or not request.options.keys() <= _DOCUMENTED:
        return None
    count = request.options.get("n", 1)
    texts = request.said if len(request.said) > 1 else request.said * count
    choices = tuple(_expected_choice(request, said) for said in texts[:count])
    if None in choices:
        return None
    return SideAnswer(tuple(filter(None, choices)), tells_prompt=False)


def _expected_choice(request: Request, said: str) -> Choice | None:
    """Return the expected choice; None if the text is not valid UTF-8 or contains a marker, so that
    it is not one token for each byte."""
    if "<" in said or is_broken(said):
        return None
    options = request.options
    stop = options.get("stop", ())
    tokens = said.encode()
    generated = bytearray()
    for position in range(options["max_tokens"]):
        if request.ends and position >= len(tokens):
            if options.get("ignore_eos") or options.get("skip_special_tokens") is False:
                return None  # how the end token is shown, is not documented
            return Choice(_text(generated), "stop", None)
        token = tokens[position % len(tokens)]
        generated.append(token)
        if len(generated) <= options.get("min_tokens", 0):
            continue
        if len(_stopped(generated, stop)) > 1:
            return None  # which of several stop strings counts, is not documented
        if token in options.get("stop_token_ids", ()):
            shown = generated if options.get("include_stop_str_in_output") else generated[:-1]
            return None if _stopped(generated, stop) else Choice(_text(shown), "stop", token)
        for start, string in _stopped(generated, stop):
            end = start + len(string) if options.get("include_stop_str_in_output") else start
            return Choice(_text(generated)[:end], "stop", string)
    return Choice(_text(generated), "length", None)


def _stopped(generated: bytearray, stop: Sequence[str]) -> list[tuple[int, str]]:
    """Return the stop strings that the last token completes, with their beginnings."""
    text = _text(generated)
    if text == _text(generated[:-1]):  # the token only begins a character
        return []
    return [(len(text) - len(string), string) for string in stop if text.endswith(string)]


def _text(generated: bytes | bytearray) -> str:
    """Return the complete characters."""
    for cut in range(4):
        try:
            return bytes(generated[: len(generated) - cut]).decode()
        except UnicodeDecodeError:
            continue
    return bytes(generated).decode(errors="replace")


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
    for compare in (*comparisons, _sampled):
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


def _sampled(one: Choice, other: Choice) -> Found:
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
