"""What is wrong with an answer, whatever was asked: a right server answers every request in time,
refuses what it cannot do, and stays alive."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import pydantic

from ...answers.explain.tracebacks import LoggedFailure, read_failures
from ...errors import UsageError
from ...util.codec import replace
from ..finding import Problem
from .api_request import BUSY, ApiReply, ApiRequest, parsed
from .servers import answer_of


class ApiOutcome(StrEnum):
    """Kinds of problems, the mildest first."""

    REFUSED_BY_CLIENT = "refused by client"
    MEMORY_GROWS = "memory grows"
    REQUESTS_KEPT = "requests are kept that have ended"
    NO_END_MARKER = "no end marker"
    SERVER_ERROR = "server error"
    CONNECTION_BROKEN = "connection broken"
    NO_ANSWER = "no answer"
    ENGINE_STUCK = "engine stuck"
    ENGINE_DEAD = "engine dead"
    OUT_OF_MEMORY = "out of memory"


def narrowed(question: ApiRequest, found: Problem) -> Problem:
    """Return the problem of a reduced question.

    One whose key says nothing but the route is told apart by the fields of the request.
    """
    if not found.key.endswith(f": {question.operation}"):
        return found
    fields = ", ".join(odd_fields(question)) or "any body"
    return replace(found, key=f"{found.key} with {fields}")


def is_explained(known: Problem, question: ApiRequest, found: Problem) -> bool:
    """Return whether a known problem, narrowed, probably is this problem of a question."""
    if known.kind != found.kind or not known.key.startswith(found.key):
        return False
    fields = known.key.removeprefix(f"{found.key} with ").split(", ")
    return known.key == found.key or {*fields} <= {*odd_fields(question)}


_USUAL = ("model", "prompt", "messages", "input", "max_tokens", "max_output_tokens", "stream")


def odd_fields(question: ApiRequest) -> list[str]:
    """Return the fields of a body that not every request has."""
    try:
        value = question.value()
    except ValueError:
        return []
    return sorted(name for name in value if name not in _USUAL) if isinstance(value, dict) else []


_DELIBERATE = (501,)
"""Statuses with which a server refuses what it does not implement."""
_SAYING_NOTHING = (
    "",
    "internal server error",
    "engine loop is not running",
    "service unavailable",
    "n",
)


def problem(question: ApiRequest, reply: ApiReply) -> Problem | None:
    """Return the worst problem of an answer; None if it is right."""
    order = [str(outcome) for outcome in ApiOutcome]
    found = list(_problems(question, reply))
    worst = max(found, key=lambda one: order.index(one.kind), default=None)
    return worst and replace(worst, traceback=traceback_of(reply.log))


def _problems(question: ApiRequest, reply: ApiReply) -> Iterator[Problem]:
    if reply.failure == BUSY:
        return
    name, message = cause(reply.log)
    where = name or question.operation
    if reply.engine.startswith("killed"):
        yield Problem(ApiOutcome.OUT_OF_MEMORY, reply.engine, question.operation)
    elif reply.engine in ("stuck", "idle"):
        outcome = ApiOutcome.ENGINE_STUCK if reply.engine == "stuck" else ApiOutcome.NO_ANSWER
        yield Problem(outcome, f"a later request is not answered; {_answered(reply)}", where)
    elif reply.engine:
        words = message or f"{reply.engine}; {_answered(reply)}"
        yield Problem(ApiOutcome.ENGINE_DEAD, words, where)
    elif reply.failure == "time":
        words = "no end of the answer in time, while the engine answers others"
        yield Problem(ApiOutcome.NO_ANSWER, words, where)
    elif reply.failure:
        words = f"{reply.failure}; {_answered(reply)}"
        yield Problem(ApiOutcome.CONNECTION_BROKEN, words, where)
    if reply.held:
        words = f"the engine keeps what belonged to requests that have ended; {_answered(reply)}"
        yield Problem(ApiOutcome.REQUESTS_KEPT, words, ", ".join(reply.held)[:500])
    if reply.status is not None and reply.status >= 500 and reply.status not in _DELIBERATE:
        key = name or _key_of_message(reply.status, _message(reply), question.operation)
        words = f"HTTP {reply.status}: {message or _message(reply)}"[:500]
        yield Problem(ApiOutcome.SERVER_ERROR, words, key)
    if reply.status == 200 and not reply.failure:
        yield from _content_problems(question, reply, name)


def _content_problems(question: ApiRequest, reply: ApiReply, name: str) -> Iterator[Problem]:
    events = reply.events()
    event, data = events[-1] if events else ("", "")
    last = answer_of(question.route).last
    if reply.is_stream and reply.ended and data != "[DONE]" and event not in last:
        words = f"the stream ends with {_short(data)}"
        yield Problem(ApiOutcome.NO_END_MARKER, words, name or question.route)
    for _, data in events:
        if data == "[DONE]":
            continue
        what = "event is " if reply.is_stream else ""
        try:
            value = parsed(data)
        except ValueError as reason:
            words = f"{what}no JSON: {reason}: {_short(data)}"
            yield Problem(ApiOutcome.REFUSED_BY_CLIENT, words, f"{question.route}: {what}no JSON")
            return
        if reply.is_stream and (error := _error(value)):
            if error[0] >= 500:
                key = name or _key_of_message(error[0], error[1], f"a stream of {question.route}")
                words = f"error {error[0]} in the stream: {error[1]}"[:500]
                yield Problem(ApiOutcome.SERVER_ERROR, words, key)
            return
        key, words = refusal(question.route, value, event=reply.is_stream)
        if key:
            yield Problem(ApiOutcome.REFUSED_BY_CLIENT, words, key)
            return


def _error(value: Any) -> tuple[int, str] | None:
    """Return status and message of an error in a stream; None if an event is none."""
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        return None
    code = error.get("code")
    if not isinstance(code, int):
        code = 500 if "internal" in str(error.get("type", "")).lower() else 400
    return code, str(error.get("message", ""))


def _message(reply: ApiReply) -> str:
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
    said = _shape(message)
    return f"HTTP {status}: {where if said.lower() in _SAYING_NOTHING else said}"


def _answered(reply: ApiReply) -> str:
    return f"the request was {f'answered with {reply.status}' if reply.status else 'not answered'}"


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."


_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|0x[0-9a-f]+|\d+|\{.*\}|\[.*\]", re.S)
_FOLLOWING = (
    "EngineGenerateError",
    "EngineDeadError",
    "CancelledError",
    "ExceptionGroup",
    "RuntimeError: Engine process failed",
)


def cause(log: str) -> tuple[str, str]:
    """Return a name of the cause of a failure, the first exception and the innermost function of
    vLLM, and its message; both empty if the log has no traceback of vLLM."""
    failure = _first_failure(log)
    if failure is None:
        return "", ""
    frame = failure.vllm_frames()[-1]
    return f"{failure.name} in {frame.of_vllm}:{frame.function}", failure.message[:500]


def traceback_of(log: str) -> str:
    """Return the exception that is the cause, with vLLM's own calls, and without the folders of
    this machine; empty if there is none."""
    failure = _first_failure(log)
    if failure is None:
        return ""
    calls = [f"{frame.of_vllm}:{frame.line} {frame.function}" for frame in failure.vllm_frames()]
    return "\n".join([*calls[-20:], f"{failure.exception}: {failure.message[:1000]}"])


def _first_failure(log: str) -> LoggedFailure | None:
    """Return the first failure that no other one caused.

    An engine's own failure counts before that of a request that waits for it.
    """
    own = [failure for failure in read_failures(log) if failure.vllm_frames()]
    roots = [
        failure
        for failure in own
        if not failure.follows and not failure.name.startswith(_FOLLOWING)
    ]
    return next(iter(roots or own), None)


def _shape(message: str) -> str:
    """Return a message without what differs between requests."""
    return " ".join(_VARIABLE.sub("N", message.splitlines()[0] if message else "").split())[:80]


_SENT_BY_OPENAI = (
    "Completion: choices.*.finish_reason: literal_error: None",
    "Completion: choices.*.logprobs.token_logprobs.*: float_type: None",
    "Completion: choices.*.logprobs.top_logprobs.*: dict_type: None",
    "CreateEmbeddingResponse: data.*.embedding: list_type",
)
"""What the types refuse although OpenAI's own servers send it: no reason before the end of a
stream, no probability of the first token, and
vectors in Base64, which the client decodes."""


def refusal(route: str, value: Any, *, event: bool = False) -> tuple[str, str]:
    """Return where the client's type for an answer, or for one event of a stream, refuses it, and
    why; both empty if it accepts it.

    Answers of routes that the clients do not know are accepted.
    """
    known = answer_of(route)
    name = known.event if event else known.whole
    if not name:
        return "", ""
    try:
        _adapter(name).validate_python(value)
    except pydantic.ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        for one in sorted(details, key=lambda detail: (-len(detail["loc"]), str(detail["loc"]))):
            place = ".".join("*" if isinstance(part, int) else str(part) for part in one["loc"])
            key = f"{name.rpartition(':')[2]}: {place}: {one['type']}"
            if not {key, f"{key}: {one['input']!r}"}.intersection(_SENT_BY_OPENAI):
                return key, f"{place}: {one['msg']}, not {one['input']!r}"[:500]
    return "", ""


@functools.cache
def _adapter(name: str) -> pydantic.TypeAdapter[Any]:
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except ImportError:
        package = module.partition(".")[0]
        raise UsageError(
            f"fuzz api needs {package}: install pytest-vllm-regress[fuzz-api]"
        ) from None
    return pydantic.TypeAdapter(kind)
