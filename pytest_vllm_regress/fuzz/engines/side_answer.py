"""Answers to a request, in one form for all fronts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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


@dataclasses.dataclass(frozen=True)
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


@dataclasses.dataclass(frozen=True)
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


def of_output(output: Mapping[str, Any], partial: bool = False) -> SideAnswer:
    """Return the answer in a finished result of an engine."""
    choices = sorted(output["outputs"], key=lambda choice: int(choice["index"]))
    return SideAnswer(
        tuple(map(_choice, choices)),
        _logprobs(output["prompt_logprobs"]),
        partial=partial and not output["finished"],
        cached=output.get("cached_tokens"),
    )


def of_stream(results: Sequence[Mapping[str, Any]], kind: str, partial: bool = False) -> SideAnswer:
    """Return the answer in the results of an asynchronous engine.

    ``kind``: what they hold, ``delta`` or ``cumulative`` results.
    """
    if not results:
        return SideAnswer(partial=partial)
    last: dict[int, Mapping[str, Any]] = {}
    prompt_logprobs: list[Any] | None = None
    for result in results:
        if result["prompt_logprobs"] is not None:
            earlier = prompt_logprobs or [] if kind == "delta" else []
            prompt_logprobs = [*earlier, *result["prompt_logprobs"]]
        for choice in result["outputs"]:
            old = last.get(choice["index"])
            last[choice["index"]] = _joined(old, choice) if kind == "delta" and old else choice
    finished = bool(results[-1]["finished"])
    output = {
        "outputs": list(last.values()),
        "prompt_logprobs": prompt_logprobs,
        "finished": finished,
    }
    return of_output(output, partial)


def _joined(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    logprobs = None if old["logprobs"] is None else [*old["logprobs"], *(new["logprobs"] or ())]
    return {
        **new,
        "text": old["text"] + new["text"],
        "token_ids": [*old["token_ids"], *new["token_ids"]],
        "logprobs": logprobs,
        "finish_reason": new["finish_reason"] or old["finish_reason"],
        "stop_reason": new["stop_reason"] if new["stop_reason"] is not None else old["stop_reason"],
    }


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


def of_completion(body: Mapping[str, Any]) -> SideAnswer:
    """Return the answer in the JSON of ``/v1/completions``."""
    choices = sorted(body["choices"], key=lambda choice: int(choice["index"]))
    prompt_logprobs = _logprobs(choices[0].get("prompt_logprobs")) if choices else None
    return SideAnswer(tuple(map(_served_choice, choices)), prompt_logprobs)


def of_events(events: Iterable[Mapping[str, Any]]) -> SideAnswer:
    """Return the answer in the events of a streamed completion, joined as a client does."""
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for part in event["choices"]:
            whole = choices.setdefault(
                part["index"], {"index": part["index"], "text": "", "logprobs": None}
            )
            whole["text"] += part.get("text") or ""
            for name in ("finish_reason", "stop_reason", "prompt_logprobs"):
                whole[name] = part.get(name) if part.get(name) is not None else whole.get(name)
            if part.get("logprobs"):
                old = whole["logprobs"] or {"token_logprobs": []}
                whole["logprobs"] = {
                    "token_logprobs": [*old["token_logprobs"], *part["logprobs"]["token_logprobs"]]
                }
    return of_completion({"choices": list(choices.values())})


def _served_choice(choice: Mapping[str, Any]) -> Choice:
    sampled = None
    if choice.get("logprobs"):
        sampled = tuple(_clamped(value) for value in choice["logprobs"]["token_logprobs"])
    return Choice(
        choice["text"], choice.get("finish_reason"), choice.get("stop_reason"), sampled=sampled
    )


def _logprobs(steps: Any) -> Logprobs | None:
    """Return log-probabilities by token. Those that a server sends of a prompt are objects."""
    if steps is None:
        return None
    return tuple(
        None
        if step is None
        else {
            int(token): _clamped(entry["logprob"] if isinstance(entry, Mapping) else entry)
            for token, entry in step.items()
        }
        for step in steps
    )


def _clamped(value: float | None) -> float:
    return LEAST if value is None else max(float(value), LEAST)
