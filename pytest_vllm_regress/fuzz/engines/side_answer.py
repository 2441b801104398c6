"""Answers to a request, in one form for all fronts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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


_DOCUMENTED = frozenset(
    [
        "max_tokens",
        "min_tokens",
        "n",
        "stop",
        "include_stop_str_in_output",
        "stop_token_ids",
        "ignore_eos",
        "temperature",
        "seed",
        "logprobs",
        "prompt_logprobs",
        "skip_special_tokens",
    ]
)
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
