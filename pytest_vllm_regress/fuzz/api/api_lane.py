"""Sends questions to servers, and sees to it that each question meets a server that works."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from ...engines.inputs.sounds import wav
from ...surveys.states.growth import Growth
from .api_request import BUSY, FORM, ApiReply, ApiRequest, form_text
from .servers import ADAPTER, ADAPTER_NAME, SERVERS, AskedServer, Starter

MAX_BODY = 2 << 20
_HEALTH_S, _TOKEN_S, _SLOW_S = 10.0, 30.0, 20.0
STATEFUL = ("lora", "adapters")
"""Words in routes that may unload the adapter."""


class ApiLane:
    """One server of each kind, asked one question after the other. ``seconds``: for one answer."""

    def __init__(self, starter: Starter, seconds: float = 20.0) -> None:
        self._starter, self._seconds = starter, seconds
        self._running: dict[str, AskedServer] = {}

    def description(self, kind: str) -> dict[str, Any]:
        """Return the OpenAPI description of a server.

        Raises ``Unsupported`` if this release has no such server.
        """
        document = self.running(kind).client.get("/openapi.json", timeout=_TOKEN_S).json()
        return document if isinstance(document, dict) else {}

    def running(self, kind: str) -> AskedServer:
        """Return the running server of a kind; start one if there is none."""
        if kind not in self._running:
            self._running[kind] = self._starter.start(kind)
            self._load_adapter(self._running[kind])
        return self._running[kind]

    def growth(self, question: ApiRequest, requests: int) -> Mapping[str, Growth]:
        """Send a question this many times, and return the growth of each process's memory.

        Raises ``NotAtWork`` if a process ends meanwhile.
        """
        running = self.running(question.server)
        return running.growth(lambda _: self._send(running, question), requests)

    def ask(self, questions: Sequence[ApiRequest]) -> list[ApiReply]:
        """Ask the questions. If the engine answers no request afterwards, ask them again on a new
        server, with a request after each one.

        An engine whose death is seen at once, in the answer or at /health, needs no second round:
        the question before left it alive.
        """
        replies = [self._one(question, look=len(questions) == 1) for question in questions]
        if len(questions) > 1 and self._is_broken(questions):
            return [self._one(question, look=True) for question in questions]
        return replies

    def _one(self, question: ApiRequest, look: bool = False) -> ApiReply:
        running = self.running(question.server)
        running.log.restart()
        reply = self._send(running, question)
        if reply.failure and reply.failure != "time" and reply.status is None:
            reply = self._send(
                running, question
            )  # a server closes a kept connection after some errors
        if reply.failure == "time" and running.health() == "slow":
            self._discard(question.server)
            return dataclasses.replace(reply, failure=BUSY)
        if reply.failure or (reply.status or 0) >= 500 or look or not _is_healthy(running.client):
            reply = dataclasses.replace(
                reply, engine=self._state(question.server), log=running.log.text()
            )
        elif reply.is_stream and '"error"' in reply.text:
            reply = dataclasses.replace(reply, log=running.log.text())
        if reply.engine or reply.failure:
            self._discard(question.server)
        elif any(word in question.route for word in STATEFUL):
            self._load_adapter(running)
        return reply

    def _send(self, running: AskedServer, question: ApiRequest) -> ApiReply:
        """Send a request and read the answer, for at most ``seconds`` in all."""
        request = _request(question, running.adapter)
        until = time.monotonic() + self._seconds
        status, kind, body, failure, ended = None, "", bytearray(), "", True
        try:
            with running.client.stream(
                question.method, question.path, timeout=self._seconds, **request
            ) as response:
                status, kind = response.status_code, response.headers.get("content-type", "")
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > MAX_BODY:
                        ended = False
                        break
                    if time.monotonic() > until:
                        failure = "time"
                        break
        except httpx.TimeoutException:
            failure = "time"
        except (httpx.TransportError, httpx.DecodingError) as error:
            failure = type(error).__name__
        text = body.decode("utf-8", "replace")
        return ApiReply(status, text, kind, ended=ended and not failure, failure=failure)

    def _is_broken(self, questions: Sequence[ApiRequest]) -> bool:
        """Return whether a server that was asked does not work. It is stopped then."""
        broken = [
            kind
            for kind in {one.server for one in questions}
            if kind in self._running and self._state(kind)
        ]
        for kind in broken:
            self._discard(kind)
        return bool(broken)

    def _state(self, kind: str) -> str:
        """Return what is wrong with an engine: ``dead``, ``stuck``, ``idle`` (the request was lost)
        or what killed it; empty if it answers.

        An engine that is slow is waited for.
        """
        running, (path, body) = self._running[kind], SERVERS[kind].probe
        until = time.monotonic() + _SLOW_S
        while True:
            try:
                if not _is_healthy(running.client):
                    return running.ended() or "dead"
                answer = running.client.post(path, json=dict(body), timeout=_TOKEN_S)
                return "" if answer.status_code == 200 else running.ended() or "dead"
            except httpx.TimeoutException:
                health = running.health()
                if health != "slow" or time.monotonic() > until:
                    return "" if health == "slow" else health
            except httpx.TransportError:
                return running.ended() or "dead"

    def _load_adapter(self, running: AskedServer) -> None:
        if running.adapter:
            with contextlib.suppress(httpx.TransportError):
                body = {"lora_name": ADAPTER_NAME, "lora_path": running.adapter}
                running.client.post("/v1/load_lora_adapter", json=body, timeout=_HEALTH_S)

    def _discard(self, kind: str) -> None:
        if running := self._running.pop(kind, None):
            running.stop()

    def close(self) -> None:
        for kind in list(self._running):
            self._discard(kind)


def _is_healthy(client: httpx.Client) -> bool:
    """Return whether /health says so.

    It is tried twice, because a server closes a kept connection after some errors.
    """
    for _ in range(2):
        with contextlib.suppress(httpx.TransportError):
            return client.get("/health", timeout=_HEALTH_S).status_code == 200
    return False


def _request(question: ApiRequest, adapter: str) -> dict[str, Any]:
    """Return the arguments of httpx for a question's body."""
    if question.body is None:
        return {}
    if question.content == FORM:
        value = question.value()
        fields = value if isinstance(value, dict) else {}
        files = {"file": ("sound.wav", wav(0.2))} if fields.get("file") == "sound.wav" else {}
        return {
            "data": {name: form_text(field) for name, field in fields.items() if name != "file"},
            "files": files,
        }
    return {
        "content": question.body.replace(ADAPTER, adapter).encode("utf-8", "replace"),
        "headers": {"Content-Type": "application/json"},
    }
