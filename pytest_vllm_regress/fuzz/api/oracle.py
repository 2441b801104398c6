"""What is wrong with an answer, whatever was asked: a right server answers every request in time,
refuses what it cannot do, and stays alive."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from .cause import cause, shape
from .clients import refusal
from .question import Question
from .reply import BUSY, Reply


class Outcome(StrEnum):
    """Kinds of problems, the mildest first."""

    REFUSED_BY_CLIENT = "refused by client"
    MEMORY_GROWS = "memory grows"
    NO_END_MARKER = "no end marker"
    SERVER_ERROR = "server error"
    CONNECTION_BROKEN = "connection broken"
    NO_ANSWER = "no answer"
    ENGINE_STUCK = "engine stuck"
    ENGINE_DEAD = "engine dead"
    OUT_OF_MEMORY = "out of memory"


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem of one answer. ``key``: its cause, by which findings are grouped."""

    outcome: Outcome
    key: str
    words: str

    @property
    def group(self) -> tuple[str, str]:
        """What findings are grouped by."""
        return self.outcome, self.key

    def narrowed(self, question: Question) -> Problem:
        """Return the problem of a reduced question.

        One whose key says nothing but the route is told apart by the fields of the request.
        """
        if not self.key.endswith(f": {question.method} {question.route}"):
            return self
        return dataclasses.replace(
            self, key=f"{self.key} with {', '.join(odd_fields(question)) or 'any body'}"
        )

    def is_explained_by(self, group: tuple[str, str], question: Question) -> bool:
        """Return whether a finding of this group probably is this problem of a question."""
        outcome, key = group
        if outcome != self.outcome or not key.startswith(self.key):
            return False
        return key == self.key or set(key.removeprefix(f"{self.key} with ").split(", ")) <= set(
            odd_fields(question)
        )


_USUAL = ("model", "prompt", "messages", "input", "max_tokens", "max_output_tokens", "stream")


def odd_fields(question: Question) -> list[str]:
    """Return the fields of a body that not every request has."""
    try:
        value = question.value()
    except ValueError:
        return []
    return sorted(name for name in value if name not in _USUAL) if isinstance(value, dict) else []


_DELIBERATE = (501,)
"""Statuses with which a server refuses what it does not implement."""
_SAYING_NOTHING = (
    "internal server error",
    "engine loop is not running",
    "service unavailable",
    "n",
)
_LAST_EVENTS = {
    "/v1/messages": ("message_stop", "error"),
    "/v1/responses": ("response.completed", "response.incomplete", "response.failed", "error"),
}


def problem(question: Question, reply: Reply) -> Problem | None:
    """Return the worst problem of an answer; None if it is right."""
    found = list(_problems(question, reply))
    return max(found, key=lambda one: list(Outcome).index(one.outcome), default=None)


def _problems(question: Question, reply: Reply) -> Iterator[Problem]:
    if reply.failure == BUSY:
        return
    name, message = cause(reply.log)
    where = name or f"{question.method} {question.route}"
    if reply.engine.startswith("killed"):
        yield Problem(Outcome.OUT_OF_MEMORY, f"{question.method} {question.route}", reply.engine)
    elif reply.engine in ("stuck", "idle"):
        outcome = Outcome.ENGINE_STUCK if reply.engine == "stuck" else Outcome.NO_ANSWER
        yield Problem(outcome, where, f"a later request is not answered; {_answered(reply)}")
    elif reply.engine:
        yield Problem(Outcome.ENGINE_DEAD, where, message or f"{reply.engine}; {_answered(reply)}")
    elif reply.failure == "time":
        yield Problem(
            Outcome.NO_ANSWER,
            where,
            "no end of the answer in time, while the engine answers others",
        )
    elif reply.failure:
        yield Problem(Outcome.CONNECTION_BROKEN, where, f"{reply.failure}; {_answered(reply)}")
    if reply.status is not None and reply.status >= 500 and reply.status not in _DELIBERATE:
        key = name or _key_of_message(
            reply.status, _message(reply), f"{question.method} {question.route}"
        )
        yield Problem(
            Outcome.SERVER_ERROR, key, f"HTTP {reply.status}: {message or _message(reply)}"[:500]
        )
    if reply.status == 200 and not reply.failure:
        yield from (
            _stream_problems(question, reply, name)
            if reply.is_stream
            else _whole_problems(question, reply)
        )


def _whole_problems(question: Question, reply: Reply) -> Iterator[Problem]:
    if "json" not in reply.content_type:
        return
    try:
        value = reply.value()
    except ValueError as error:
        yield Problem(
            Outcome.REFUSED_BY_CLIENT, f"{question.route}: no JSON", f"the body is no JSON: {error}"
        )
        return
    key, words = refusal(question.route, value)
    if key:
        yield Problem(Outcome.REFUSED_BY_CLIENT, key, words)


def _stream_problems(question: Question, reply: Reply, name: str) -> Iterator[Problem]:
    events = reply.events()
    last = events[-1] if events else ("", "")
    markers = _LAST_EVENTS.get(question.route)
    if reply.ended and not (last[1] == "[DONE]" or (markers and last[0] in markers)):
        yield Problem(
            Outcome.NO_END_MARKER, name or question.route, f"the stream ends with {_short(last[1])}"
        )
    for _, data in events:
        if data == "[DONE]":
            continue
        try:
            value = json.loads(data)
        except ValueError:
            yield Problem(
                Outcome.REFUSED_BY_CLIENT,
                f"{question.route}: event is no JSON",
                f"an event is no JSON: {_short(data)}",
            )
            return
        if error := _error(value):
            if error[0] >= 500:
                key = name or _key_of_message(error[0], error[1], f"a stream of {question.route}")
                yield Problem(
                    Outcome.SERVER_ERROR, key, f"error {error[0]} in the stream: {error[1]}"[:500]
                )
            return
        key, words = refusal(question.route, value, event=True)
        if key:
            yield Problem(Outcome.REFUSED_BY_CLIENT, key, words)
            return


def _error(value: Any) -> tuple[int, str] | None:
    """Return status and message of an error in a stream; None if an event is none."""
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        return None
    code = error.get("code")
    internal = "internal" in str(error.get("type", "")).lower()
    return (code if isinstance(code, int) else 500 if internal else 400), str(
        error.get("message", "")
    )


def _message(reply: Reply) -> str:
    """Return the message of an error's body."""
    try:
        value = reply.value()
    except ValueError:
        return _short(reply.text)
    error = value.get("error", value) if isinstance(value, dict) else value
    return _short(str(error.get("message", error) if isinstance(error, dict) else error))


def _key_of_message(status: int, message: str, where: str) -> str:
    """Return the key of an error that nothing was logged about: by its message alone, if that says
    anything."""
    said = shape(message)
    return (
        f"HTTP {status}: {said}"
        if said and said.lower() not in _SAYING_NOTHING
        else f"HTTP {status}: {where}"
    )


def _answered(reply: Reply) -> str:
    return (
        f"the request was answered with {reply.status}"
        if reply.status
        else "the request was not answered"
    )


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."
