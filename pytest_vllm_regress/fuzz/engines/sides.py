"""Asks one configuration.

An engine that dies or hangs is replaced, and what it was asked is answered with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx

from ...engines.server import Server
from ...engines.session import Session
from ...engines.spec import EngineSpec, front_named
from ...errors import (
    ChildDied,
    ChildError,
    DeadlineExceeded,
    Kind,
    RemoteError,
    ScriptError,
    Unsupported,
)
from ..kept import kept_engine
from .engine_question import Request, Turns
from .pairs import SERVE, Configuration
from .side_answer import (
    DEATH,
    INTERNAL,
    NO_ANSWER,
    OFF_SCRIPT,
    REFUSED,
    SideAnswer,
    of_events,
    of_output,
    of_stream,
)

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
_FAILURES = (ChildError, ScriptError, Unsupported)


class EngineSide:
    """One running engine or server, started by the first question.

    ``user``: name of the pair, whose engines stay up together. ``seconds``: time for a turn.
    """

    def __init__(
        self,
        session: Session,
        environment: str,
        configuration: Configuration,
        user: str,
        seconds: float,
    ) -> None:
        self._configuration, self._seconds = configuration, seconds
        spec = dict(configuration.spec)
        if configuration.front == SERVE:
            spec["env"] = {**_DEVELOPER, **spec.get("env", {})}
        target = session.target(configuration.environment or environment)
        front = front_named(configuration.front)
        self.engine = kept_engine(session, target, EngineSpec.create(**spec), front, user)

    def ask(self, question: Turns) -> list[SideAnswer]:
        """Return the answer to each request."""
        with contextlib.suppress(ChildError, Unsupported):
            self.engine.get().reset_prefix_cache()
        together = self._configuration.together
        parts = question.turns if together else [(request,) for request in question.requests]
        return [reply for part in parts for reply in self._together(part)]

    def _together(self, turn: Sequence[Request]) -> list[SideAnswer]:
        """Ask requests together; if one of them fails, each alone, and those that do not fail
        together again."""
        try:
            return self._replies(turn)
        except _FAILURES as error:
            failed = self._failed(error)
            if len(turn) == 1:
                return [failed]
            self.engine.drop()  # requests of a batch that was refused may still run
        alone = [self._together([request])[0] for request in turn]
        sound = [request for request, reply in zip(turn, alone, strict=True) if not reply.error]
        if len(sound) < 2:
            return alone
        if len(sound) == len(turn):
            return [failed] * len(turn)  # they fail only together
        again = iter(self._together(sound))
        return [reply if reply.error else next(again) for reply in alone]

    def _replies(self, turn: Sequence[Request]) -> list[SideAnswer]:
        ask = self._served if self._configuration.front == SERVE else self._generated
        return ask(turn)

    def _generated(self, turn: Sequence[Request]) -> list[SideAnswer]:
        stream = self._configuration.stream
        options: dict[str, Any] = {"timeout": self._seconds}
        if any(request.adapter for request in turn):
            options["adapters"] = [request.lora for request in turn]
        if any(request.priority is not None for request in turn):
            options["priority"] = [request.priority or 0 for request in turn]
        if stream and any(request.abort_after for request in turn):
            options["abort_after"] = [request.abort_after for request in turn]
        offline = self._configuration.front == "offline"
        if not offline:
            options["output_kind"] = stream or "final_only"
        prompts = [_prompt(request) for request in turn]
        samplings = [dict(request.options) for request in turn]
        results = self.engine.get().generate(prompts, samplings, **options)
        if offline:
            return list(map(of_output, results))
        return [
            of_stream(parts, stream, bool(request.abort_after))
            for request, parts in zip(turn, results, strict=True)
        ]

    def _served(self, turn: Sequence[Request]) -> list[SideAnswer]:
        server = self.engine.get()
        bodies = [_body(server.model, one, bool(self._configuration.stream)) for one in turn]
        replies: list[SideAnswer] = asyncio.run(_post_all(server, bodies, self._seconds))
        server.scripts.check()
        errors = {reply.error for reply in replies}
        dead = bool({INTERNAL, NO_ANSWER} & errors) and not self._works()
        if dead or NO_ANSWER in errors:
            self.engine.drop()
        return [replace(one, error=DEATH) if dead and one.error else one for one in replies]

    def _failed(self, error: Exception) -> SideAnswer:
        """Return the answer for an error, and drop an engine that no longer works."""
        words = str(error.args[0]).partition("\n")[0][:500]
        kind = _class_of(error)
        if isinstance(error, ChildError):
            if kind in (REFUSED, INTERNAL) and not self._works():
                kind = DEATH
            if kind in (DEATH, NO_ANSWER):
                self.engine.drop()
        return SideAnswer(error=kind, words=words)

    def _works(self) -> bool:
        """Return whether the engine answers a request for one token, which takes it a fraction of a
        second."""
        try:
            engine = self.engine.get()
            if isinstance(engine, Server):
                body = {"model": engine.model, "prompt": "Hello", "max_tokens": 1}
                return not engine.post("/v1/completions", body, timeout=_WORKS_S).is_error
            engine.generate("Hello", {"max_tokens": 1}, timeout=_WORKS_S)
        except (ChildError, ScriptError):
            return False
        return True


def _prompt(request: Request) -> Any:
    prompt: dict[str, Any] = {"prompt": request.text}
    if request.tokens is not None:
        prompt = {"prompt_token_ids": request.tokens}
    if request.salt:
        prompt["cache_salt"] = request.salt
    return request.text if prompt.keys() == {"prompt"} else prompt


def _class_of(error: Exception) -> str:
    if isinstance(error, ScriptError):
        return OFF_SCRIPT
    if isinstance(error, Unsupported):
        return REFUSED
    if isinstance(error, DeadlineExceeded):
        return NO_ANSWER
    if isinstance(error, ChildDied) or getattr(error, "kind", None) is Kind.ENGINE_DEATH:
        return DEATH
    if isinstance(error, RemoteError) and error.type_name.endswith(_REFUSALS):
        return REFUSED
    return INTERNAL


def _body(model: str, request: Request, streamed: bool) -> dict[str, Any]:
    """Return the body of a completion."""
    options = dict(request.options)
    for name, value in options.get("structured_outputs", {}).items():
        options[f"guided_{name}"] = value  # the name in older releases
    if streamed:
        options["stream"] = True
    return {"model": model, "prompt": request.tokens or request.text, **options}


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
    if response.is_error:
        kind = INTERNAL if response.status_code >= 500 else REFUSED
        return SideAnswer(error=kind, words=f"HTTP {response.status_code}: {response.text[:400]}")
    try:
        return _parsed(response, "stream" in body)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        words = f"an answer of another form: {error!r}: {response.text[:300]}"
        return SideAnswer(error=INTERNAL, words=words)


def _parsed(response: httpx.Response, streamed: bool) -> SideAnswer:
    if streamed:
        lines = response.text.splitlines()
        *data, end = ["", *(line[6:] for line in lines if line.startswith("data: "))]
        if end != "[DONE]":
            words = f"the stream ended without [DONE]: {[end] if data else []}"
            return SideAnswer(error=INTERNAL, words=words)
        events = list(map(json.loads, data[1:]))
    else:
        events = [response.json()]
    if wrong := [event for event in events if event.get("choices") is None]:
        error = wrong[0].get("error", wrong[0])  # which came with the status of success
        code = error.get("code") if isinstance(error, Mapping) else None
        kind = INTERNAL if isinstance(code, int) and code >= 500 else REFUSED
        words = f"an error with status 200: {json.dumps(wrong[0])[:400]}"
        return SideAnswer(error=kind, words=words)
    return of_events(events)
