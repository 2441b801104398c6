"""Asks one configuration.

An engine that dies or hangs is replaced, and what it was asked is answered with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import httpx

from ...engines.engine import AsyncEngine, Engine
from ...engines.server import Server
from ...engines.session import Session
from ...engines.spec import EngineSpec, Front, front_named
from ...engines.target import Target
from ...errors import (
    ChildDied,
    ChildError,
    DeadlineExceeded,
    Kind,
    RemoteError,
    ScriptError,
    Unsupported,
)
from . import side_answer as answers
from .engine_question import Request, Turns
from .pairs import MODEL, SERVE, Configuration
from .scripted_answer import expected
from .side_answer import DEATH, INTERNAL, NO_ANSWER, OFF_SCRIPT, REFUSED, SideAnswer

_REFUSALS = (
    "ValueError",
    "ValidationError",
    "TypeError",
    "NotImplementedError",
    "OverflowError",
    "TemplateError",
)
_DEVELOPER = {"VLLM_SERVER_DEV_MODE": "1"}
_WORKS_S = 10.0
"""Time in which an engine answers one token after an error, else it counts as dead."""


class Side(Protocol):
    """Answers questions."""

    def ask(self, question: Turns) -> list[SideAnswer | None]:
        """Return the answer to each request; None if this side does not know it."""
        ...


class ModelSide:
    """What the script and the documentation say."""

    def ask(self, question: Turns) -> list[SideAnswer | None]:
        return [expected(request) for request in question.requests]


class EngineSide:
    """One running engine or server. ``user``: name of the pair, whose engines stay up together."""

    def __init__(
        self,
        session: Session,
        target: Target,
        configuration: Configuration,
        user: str,
        seconds: float,
    ) -> None:
        self._session, self._target, self._configuration = session, target, configuration
        self._user, self._seconds = user, seconds
        spec = dict(configuration.spec)
        if configuration.front == SERVE:
            spec["env"] = {**_DEVELOPER, **spec.get("env", {})}
        self._spec = EngineSpec.create(**spec)
        self._front: Front = front_named(configuration.front)
        self._running: Engine | AsyncEngine | Server | None = None

    def start(self) -> None:
        """Start the engine. Raises the errors of a start."""
        self._engine()

    def ask(self, question: Turns) -> list[SideAnswer | None]:
        self._forget_prompts()
        replies: list[SideAnswer | None] = []
        for turn in question.turns:
            replies += self._turn(turn)
        return replies

    def _engine(self) -> Engine | AsyncEngine | Server:
        engine: Any = self._session.start(
            self._front, self._target, self._spec, user=self._user, fresh=False
        )
        self._running = engine
        return self._running

    def _current(self) -> Engine | AsyncEngine | Server:
        """Return the engine without a check whether it works, which the pool would make by a
        request."""
        alive = self._running is not None and self._running.child.alive
        return self._running if alive and self._running is not None else self._engine()

    def _forget_prompts(self) -> None:
        with contextlib.suppress(ChildError, Unsupported):
            self._current().reset_prefix_cache()

    def _turn(self, turn: Sequence[Request]) -> list[SideAnswer]:
        if not self._configuration.together:
            return [reply for request in turn for reply in self._together([request])]
        return self._together(turn)

    def _together(self, turn: Sequence[Request]) -> list[SideAnswer]:
        """Ask requests together; if one of them fails, each alone, and those that do not fail
        together again."""
        if self._front == SERVE:
            return self._served(turn)
        try:
            return self._generated(turn)
        except (ChildError, ScriptError, Unsupported) as error:
            if len(turn) == 1:
                return [self._failed(error)]
            self._drop()  # requests of a batch that was refused may still run
        alone = [self._together([request])[0] for request in turn]
        sound = [request for request, reply in zip(turn, alone, strict=True) if not reply.error]
        if len(sound) == len(turn):
            return self._failing_together(turn)
        again = iter(self._together(sound)) if len(sound) > 1 else iter(())
        return [reply if reply.error or len(sound) == 1 else next(again) for reply in alone]

    def _failing_together(self, turn: Sequence[Request]) -> list[SideAnswer]:
        """Return the error of requests that fail only together."""
        try:
            return self._generated(turn)
        except (ChildError, ScriptError, Unsupported) as error:
            reply = self._failed(error)
            self._drop()
            return [reply] * len(turn)

    def _generated(self, turn: Sequence[Request]) -> list[SideAnswer]:
        engine, stream = self._current(), self._configuration.stream
        options: dict[str, Any] = {"timeout": self._seconds}
        if any(request.adapter for request in turn):
            options["adapters"] = [request.lora for request in turn]
        if any(request.priority is not None for request in turn):
            options["priority"] = [request.priority or 0 for request in turn]
        prompts = [_prompt(request) for request in turn]
        samplings = [dict(request.options) for request in turn]
        if isinstance(engine, Engine):
            return [
                answers.of_output(output)
                for output in engine.generate(prompts, samplings, **options)
            ]
        assert isinstance(engine, AsyncEngine)
        kind = stream or "final_only"
        if stream and any(request.abort_after for request in turn):
            options["abort_after"] = [request.abort_after for request in turn]
        streams = engine.generate(prompts, samplings, output_kind=kind, **options)
        return [
            answers.of_stream(results, kind, bool(request.abort_after))
            for request, results in zip(turn, streams, strict=True)
        ]

    def _failed(self, error: Exception) -> SideAnswer:
        """Return the answer for an error, and drop an engine that no longer works."""
        words = str(error.args[0]).partition("\n")[0][:500]
        if isinstance(error, ScriptError):
            return SideAnswer(error=OFF_SCRIPT, words=words)
        if isinstance(error, Unsupported):
            return SideAnswer(error=REFUSED, words=words)
        kind = _class_of(error)
        if kind in (REFUSED, INTERNAL):
            kind = kind if self._works() else DEATH
        if kind in (DEATH, NO_ANSWER):
            self._drop()
        return SideAnswer(error=kind, words=words)

    def _works(self) -> bool:
        """Return whether the engine answers a request for one token, which takes it a fraction of a
        second."""
        try:
            engine = self._current()
            if isinstance(engine, Server):
                body = {"model": engine.model, "prompt": "Hello", "max_tokens": 1}
                return not engine.post("/v1/completions", body, timeout=_WORKS_S).is_error
            engine.generate("Hello", {"max_tokens": 1}, timeout=_WORKS_S)
        except (ChildError, ScriptError):
            return False
        return True

    def _drop(self) -> None:
        self._running = None
        self._session.drop(self._target, self._spec, self._front)

    def _served(self, turn: Sequence[Request]) -> list[SideAnswer]:
        server = self._current()
        assert isinstance(server, Server)
        streamed = bool(self._configuration.stream)
        bodies = [_body(server.model, request, streamed) for request in turn]
        try:
            replies: list[SideAnswer] = asyncio.run(_post_all(server, bodies, self._seconds))
            server.scripts.check()
        except ScriptError as error:
            if len(turn) == 1:
                return [self._failed(error)]
            return [self._served([request])[0] for request in turn]
        if any(reply.error in (INTERNAL, NO_ANSWER) for reply in replies) and not self._works():
            self._drop()
            replies = [
                dataclasses.replace(reply, error=DEATH) if reply.error else reply
                for reply in replies
            ]
        elif any(reply.error == NO_ANSWER for reply in replies):
            self._drop()
        return replies


def side(
    session: Session, environment: str, configuration: Configuration, user: str, seconds: float
) -> Side:
    """Return the side of a configuration. Its engine is started by the first question."""
    if configuration.front == MODEL:
        return ModelSide()
    return EngineSide(
        session,
        session.target(configuration.environment or environment),
        configuration,
        user,
        seconds,
    )


def _prompt(request: Request) -> Any:
    prompt: dict[str, Any] = (
        {"prompt_token_ids": request.tokens}
        if request.tokens is not None
        else {"prompt": request.text}
    )
    if request.salt:
        prompt["cache_salt"] = request.salt
    return request.text if prompt.keys() == {"prompt"} else prompt


def _class_of(error: Exception) -> str:
    if isinstance(error, DeadlineExceeded):
        return NO_ANSWER
    if isinstance(error, ChildDied) or (
        isinstance(error, ChildError) and error.kind is Kind.ENGINE_DEATH
    ):
        return DEATH
    if isinstance(error, RemoteError):
        name = error.type_name.rpartition(".")[2]
        return REFUSED if name.endswith(_REFUSALS) else INTERNAL
    return INTERNAL


def _body(model: str, request: Request, streamed: bool) -> dict[str, Any]:
    """Return the body of a completion."""
    options = dict(request.options)
    grammar = options.pop("structured_outputs", None)
    if grammar is not None:
        options.update(
            {f"guided_{name}": value for name, value in grammar.items()}, structured_outputs=grammar
        )
    body: dict[str, Any] = {
        "model": model,
        "prompt": request.tokens if request.tokens is not None else request.text,
        **options,
    }
    if streamed:
        body["stream"] = True
    return body


async def _post_all(
    server: Server, bodies: Sequence[Mapping[str, Any]], seconds: float
) -> list[SideAnswer]:
    async with server.async_client(timeout=seconds) as client:
        return list(await asyncio.gather(*(_post(client, body) for body in bodies)))


async def _post(client: httpx.AsyncClient, body: Mapping[str, Any]) -> SideAnswer:
    try:
        # In ASCII: httpx encodes as UTF-8, which lone surrogates are not.
        headers = {"Content-Type": "application/json"}
        response = await client.post("/v1/completions", content=json.dumps(body), headers=headers)
    except httpx.TimeoutException as error:
        return SideAnswer(error=NO_ANSWER, words=repr(error))
    except httpx.TransportError as error:
        return SideAnswer(error=INTERNAL, words=f"the server broke the connection: {error!r}")
    return _parsed(response, bool(body.get("stream")))


def _parsed(response: httpx.Response, streamed: bool) -> SideAnswer:
    if response.is_error:
        kind = INTERNAL if response.status_code >= 500 else REFUSED
        return SideAnswer(error=kind, words=f"HTTP {response.status_code}: {response.text[:400]}")
    try:
        if not streamed:
            document = response.json()
            if document.get("choices") is None:
                return _of_error(document)
            return answers.of_completion(document)
        lines = [
            line.removeprefix("data: ")
            for line in response.text.splitlines()
            if line.startswith("data: ")
        ]
        if not lines or lines[-1] != "[DONE]":
            return SideAnswer(
                error=INTERNAL, words=f"the stream ended without [DONE]: {lines[-1:]}"
            )
        events = [json.loads(line) for line in lines[:-1]]
        if wrong := [event for event in events if "choices" not in event]:
            return _of_error(wrong[0])
        return answers.of_events(events)
    except (ValueError, KeyError, TypeError) as error:
        return SideAnswer(
            error=INTERNAL, words=f"an answer of another form: {error!r}: {response.text[:300]}"
        )


def _of_error(document: Mapping[str, Any]) -> SideAnswer:
    """Return the answer for an error that came with the status of success."""
    error = document.get("error", document)
    code = error.get("code") if isinstance(error, Mapping) else None
    kind = INTERNAL if isinstance(code, int) and code >= 500 else REFUSED
    return SideAnswer(error=kind, words=f"an error with status 200: {json.dumps(document)[:400]}")
