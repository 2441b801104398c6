"""Sends questions to servers, and sees to it that each question meets a server that works."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from ...engines.inputs.media import wav
from ...surveys.states.growth import Growth
from .question import FORM, Question, form_text, sent_text
from .reply import BUSY, MAX_BODY, Reply
from .servers import ADAPTER_NAME, SERVERS
from .starting import Running, Starter

BATCH = 8
"""Number of questions after which the engine is asked for a token."""
_HEALTH_S, _TOKEN_S, _SLOW_S = 10.0, 30.0, 20.0
_STATEFUL = ("lora", "adapters")
"""Words in routes that may unload the adapter."""


class ApiChecker:
    """Asks servers of one environment.

    Args:
        seconds: time for one answer.
        jobs: number of servers of one kind that are asked at the same time.
    """

    def __init__(self, starter: Starter, seconds: float = 20.0, jobs: int = 1) -> None:
        self.environment, self.versions = starter.environment, dict(starter.versions)
        self._lanes = [_Lane(starter, seconds) for _ in range(jobs)]

    @property
    def version(self) -> str:
        """Version of vLLM."""
        return self.versions["vllm"]

    def description(self, kind: str) -> dict[str, Any]:
        """Return the OpenAPI description of a server.

        Raises ``Unsupported`` if this release has no such server.
        """
        document = self._lanes[0].running(kind).client.get("/openapi.json", timeout=_TOKEN_S).json()
        return document if isinstance(document, dict) else {}

    def ask(self, questions: Sequence[Question]) -> list[Reply]:
        """Ask the questions.

        One that leaves the engine dead or stuck is found, and the next one meets a new server.
        """
        if len(self._lanes) == 1 or len(questions) <= BATCH:
            return self._lanes[0].ask(questions)
        size = -(-len(questions) // len(self._lanes))
        parts = [questions[start : start + size] for start in range(0, len(questions), size)]
        with ThreadPoolExecutor(len(parts)) as pool:
            replies = pool.map(lambda lane, part: lane.ask(part), self._lanes, parts)
            return [reply for part in replies for reply in part]

    def growth(self, question: Question, requests: int) -> Mapping[str, Growth]:
        """Send a question this many times, and return the growth of each process's memory.

        Raises ``NotAtWork`` if a process ends meanwhile.
        """
        return self._lanes[0].growth(question, requests)

    def close(self) -> None:
        """Stop all servers."""
        for lane in self._lanes:
            lane.close()


class _Lane:
    """One server of each kind, asked one question after the other."""

    def __init__(self, starter: Starter, seconds: float) -> None:
        self._starter, self._seconds = starter, seconds
        self._running: dict[str, Running] = {}

    def running(self, kind: str) -> Running:
        """Return the running server of a kind; start one if there is none."""
        if kind not in self._running:
            self._running[kind] = self._starter.start(kind)
            self._load_adapter(self._running[kind])
        return self._running[kind]

    def ask(self, questions: Sequence[Question]) -> list[Reply]:
        replies: list[Reply] = []
        for start in range(0, len(questions), BATCH):
            replies += self._batch(questions[start : start + BATCH])
        return replies

    def growth(self, question: Question, requests: int) -> Mapping[str, Growth]:
        running = self.running(question.server)
        return running.growth(lambda _: self._send(running, question), requests)

    def _batch(self, questions: Sequence[Question]) -> list[Reply]:
        """Ask the questions. If the engine answers no request afterwards, ask them again on a new
        server, with a request after each one.

        An engine whose death is seen at once, in the answer or at /health, needs no second round:
        the question before left it alive.
        """
        replies = [self._one(question, look=len(questions) == 1) for question in questions]
        if len(questions) > 1 and self._is_broken(questions):
            return [self._one(question, look=True) for question in questions]
        return replies

    def _one(self, question: Question, look: bool = False) -> Reply:
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
        elif any(word in question.route for word in _STATEFUL):
            self._load_adapter(running)
        return reply

    def _send(self, running: Running, question: Question) -> Reply:
        """Send a request and read the answer, for at most ``seconds`` in all."""
        request = _request(question, running.adapter)
        until = time.monotonic() + self._seconds
        status, kind, body = None, "", bytearray()
        try:
            with running.client.stream(
                question.method, question.path, timeout=self._seconds, **request
            ) as response:
                status, kind = response.status_code, response.headers.get("content-type", "")
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > MAX_BODY or time.monotonic() > until:
                        failure = "" if len(body) > MAX_BODY else "time"
                        return Reply(status, _text(body), kind, ended=False, failure=failure)
        except httpx.TimeoutException:
            return Reply(status, _text(body), kind, ended=False, failure="time")
        except (httpx.TransportError, httpx.DecodingError) as error:
            return Reply(status, _text(body), kind, ended=False, failure=type(error).__name__)
        return Reply(status, _text(body), kind)

    def _is_broken(self, questions: Sequence[Question]) -> bool:
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

    def _load_adapter(self, running: Running) -> None:
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


def _request(question: Question, adapter: str) -> dict[str, Any]:
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
    text = sent_text(question, adapter) or ""
    return {
        "content": text.encode("utf-8", "replace"),
        "headers": {"Content-Type": "application/json"},
    }


def _text(body: bytearray) -> str:
    return body.decode("utf-8", "replace")
