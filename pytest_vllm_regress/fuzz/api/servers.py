"""The servers that are asked: one for each kind of routes, with the options that register most of
them (``data/fuzz/servers.toml``); how they are started and asked."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import unquote

import httpx

from ...engines.checkpoints.adapters import Adapter, ensure_adapter
from ...engines.inputs.media import wav
from ...engines.processes.logs import LogWindow
from ...engines.server import Server
from ...engines.session import Session
from ...engines.settings import Limits
from ...engines.spec import EngineSpec
from ...errors import ChildError, LimitExceeded, Unsupported, UsageError
from ...surveys.states.growth import Growth, measure_growth
from ...util import codec
from ...util.codec import load
from ...util.deadline import Deadline
from ...util.paths import DATA, writable_root
from ...util.sizes import GIB
from ..kept import Kept
from .api_request import BUSY, FORM, ApiReply, ApiRequest, form_text

MODEL = "m"
"""Name of the model in requests."""
ADAPTER = "{adapter}"
"""Stands for the path of a forged adapter in a body."""
ADAPTER_NAME = "a"
"""Name of the adapter that is loaded when a server starts."""


class ServerKind(codec.Document, frozen=True):
    """A kind of server, as the file describes it."""

    probe: str
    body: Mapping[str, Any]
    spec: Mapping[str, Any]
    optional: Mapping[str, Any] = {}
    adapters: bool = False

    @property
    def usual(self) -> EngineSpec:
        """The spec without the options of ``optional``."""
        extra = {"served_model_name": MODEL, **self.spec.get("extra", {})}
        return EngineSpec.create(**{**self.spec, "extra": extra})

    def options(self) -> str:
        """Return the options of `vllm serve` for people, without the model."""
        spec = self.usual
        flags = [
            f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
            for name, value in {**spec.extra, **spec.server_options, **self.optional}.items()
        ]
        variables = [f"{name}={value}" for name, value in spec.env.items()]
        return " ".join([*variables, "vllm serve MODEL", *flags])


class ReadAnswer(codec.Document, frozen=True):
    """How clients read the answers of a route. Empty: they do not know it."""

    whole: str = ""
    event: str = ""
    last: tuple[str, ...] = ()


class _Catalogue(codec.Document, frozen=True):
    servers: Mapping[str, ServerKind]
    not_asked: Mapping[str, str]
    answers: Mapping[str, ReadAnswer]


_catalogue = load(_Catalogue, DATA / "fuzz" / "servers.toml", 1 << 20, what="the servers")
SERVERS = _catalogue.servers
NOT_ASKED = _catalogue.not_asked
"""Routes that change the engine for all later requests, and why they are left out."""
LIMITS = Limits(memory_bytes=6 * GIB, option_names={})
"""A request that makes a server take more memory has killed it.

Stock servers of forged models take 2 GiB.
"""


def answer_of(route: str) -> ReadAnswer:
    """Return how clients read the answers of a route."""
    return _catalogue.answers.get(route, ReadAnswer())


class AskedServer:
    """A running server. ``adapter``: path of the adapter that requests may load; empty if the
    server takes none.

    ``client`` keeps its connection, which is proven to be the server's when it is made: ten times
    as fast as one for each request.
    """

    def __init__(self, server: Server, adapter: str = "") -> None:
        self.adapter = adapter
        self.log = LogWindow(server.child.log)
        self.client = httpx.Client(
            base_url=server.root_url,
            headers=server.client.headers,
            trust_env=False,
            event_hooks={"request": [server.listener.guard]},
        )
        self._server = server

    def health(self) -> str:
        """Return dead, stuck, slow or idle, for a server that does not answer."""
        return self._server.health().state

    def ended(self) -> str:
        """Return what ended a server that takes no connections: a limit, or itself; empty if it
        lives."""
        try:
            self._server.child.check_alive(Deadline.after("request", 1.0))
        except LimitExceeded as error:
            return f"killed for its {error.limit}"
        except ChildError:
            return "dead"
        return ""

    def held(self) -> tuple[str, ...]:
        """Return the containers of the engine that keep what belonged to requests that have ended,
        and were not returned before."""
        error = self._server.held_requests()
        return error.containers if error is not None else ()

    def growth(self, send: Callable[[int], object], requests: int) -> Mapping[str, Growth]:
        """Send this many requests by a function that gets their numbers, and return the growth of
        each process's memory."""
        return measure_growth(self._server, send, requests=requests, warm_up=requests // 4)

    def stop(self) -> None:
        """End the server. It may be dead already."""
        self.client.close()
        with contextlib.suppress(ChildError):
            self._server.child.kill()
            self._server.stop()


class ServerStarter:
    """Starts stock servers, one at a time, because a session is not shared between threads."""

    def __init__(self, session: Session, environment: str) -> None:
        self._session, self._target = session, session.target(environment)
        self._lock = threading.Lock()
        self._optional = {name: dict(kind.optional) for name, kind in SERVERS.items()}

    def start(self, name: str) -> AskedServer:
        """Start a server of a kind. Raises ``Unsupported`` if this release has no such server."""
        with self._lock:
            server = self._server(name)
            if not SERVERS[name].adapters:
                return AskedServer(server)
            place = writable_root() / "adapters"
            adapter = ensure_adapter(Adapter(ADAPTER_NAME), server.model_path, place)
            return AskedServer(server, str(adapter))

    def _server(self, name: str) -> Server:
        """Start a server without the optional options that this release refuses.

        It finds only the programs of its environment and of the system: a route that calls uv
        answers the same on every machine.
        """
        usual, optional = SERVERS[name].usual, self._optional[name]
        path = os.pathsep.join([str(self._target.python.parent), os.defpath])
        while True:
            spec = usual.replace(
                server_options={**usual.server_options, **optional},
                env={**usual.env, "PATH": path},
            )
            try:
                running: Server = self._session.start(
                    "serve", self._target, spec, user="fuzz api", fresh=True
                )
                return running
            except Unsupported:
                if not optional:
                    raise
                del optional[next(iter(optional))]


MAX_BODY = 2 << 20
_HEALTH_S, _TOKEN_S, _SLOW_S = 10.0, 30.0, 20.0
STATEFUL = ("lora", "adapters")
"""Words in routes that may unload the adapter."""


class ApiLane:
    """One server of each kind, asked one question after the other. ``seconds``: for one answer."""

    def __init__(self, starter: ServerStarter, seconds: float = 20.0) -> None:
        self._starter, self._seconds = starter, seconds
        self._servers = {
            # A server that has ended stays until the question that ended it is known.
            kind: Kept(
                partial(self._start, kind), lambda server: server.stop(), lambda server: True
            )
            for kind in SERVERS
        }

    def description(self, kind: str) -> dict[str, Any]:
        """Return the OpenAPI description of a server.

        Raises ``Unsupported`` if this release has no such server.
        """
        client = self._servers[kind].get().client
        document = client.get("/openapi.json", timeout=_TOKEN_S).json()
        return document if isinstance(document, dict) else {}

    def growth(self, question: ApiRequest, requests: int) -> Mapping[str, Growth]:
        """Send a question this many times, and return the growth of each process's memory.

        Raises ``NotAtWork`` if a process ends meanwhile.
        """
        server = self._servers[question.server].get()
        return server.growth(lambda _: self._send(server, question), requests)

    def ask(self, questions: Sequence[ApiRequest]) -> list[ApiReply]:
        """Ask the questions, all to one kind of server. If the engine answers no request afterwards,
        or keeps requests that have ended, ask them again on a new server, and look after each one.

        An engine whose death is seen at once, in the answer or at /health, needs no second round:
        the question before left it alive.
        """
        alone = len(questions) == 1
        replies = [self._one(question, look=alone) for question in questions]
        kept = self._servers[questions[0].server]
        if not alone and kept.running and (self._state(questions[0].server) or kept.running.held()):
            kept.drop()
            return [self._one(question, look=True) for question in questions]
        return replies

    def close(self) -> None:
        """Stop the servers."""
        for kept in self._servers.values():
            kept.drop()

    def _start(self, kind: str) -> AskedServer:
        server = self._starter.start(kind)
        _load_adapter(server)
        return server

    def _one(self, question: ApiRequest, look: bool) -> ApiReply:
        kept = self._servers[question.server]
        server = kept.get()
        server.log.restart()
        reply = self._send(server, question)
        if reply.failure and reply.failure != "time" and reply.status is None:
            reply = self._send(server, question)  # it closes a kept connection after some errors
        if reply.failure == "time" and server.health() == "slow":
            kept.drop()
            return replace(reply, failure=BUSY)
        failed = reply.failure or (reply.status or 0) >= 500
        if failed or look or not _is_healthy(server.client):
            state = self._state(question.server)
            reply = replace(reply, engine=state, log=server.log.text())
        elif reply.is_stream and '"error"' in reply.text:
            reply = replace(reply, log=server.log.text())
        if look and not reply.engine:
            reply = replace(reply, held=server.held())
        if reply.engine or reply.failure:
            kept.drop()
        elif any(word in question.route for word in STATEFUL):
            _load_adapter(server)
        return reply

    def _send(self, server: AskedServer, question: ApiRequest) -> ApiReply:
        """Send a request and read the answer, for at most ``seconds`` in all.

        Raises ``UsageError`` for one that no campaign sends: a finding may be anybody's file.
        """
        _check_asked(question)
        request = _request(question, server.adapter)
        until = time.monotonic() + self._seconds
        status, kind, body, failure, ended = None, "", bytearray(), "", True
        try:
            with server.client.stream(
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

    def _state(self, kind: str) -> str:
        """Return what is wrong with an engine: ``dead``, ``stuck``, ``idle`` (the request was lost)
        or what killed it; empty if it answers.

        An engine that is slow is waited for.
        """
        server, probe = self._servers[kind].get(), SERVERS[kind]
        body = {"model": MODEL, **probe.body}
        until = time.monotonic() + _SLOW_S
        while True:
            try:
                works = _is_healthy(server.client) and (
                    server.client.post(probe.probe, json=body, timeout=_TOKEN_S).is_success
                )
            except httpx.TimeoutException:
                health = server.health()
                if health != "slow" or time.monotonic() > until:
                    return "" if health == "slow" else health
                continue
            except httpx.TransportError:
                works = False
            return "" if works else server.ended() or "dead"


def _check_asked(question: ApiRequest) -> None:
    """The servers are in development mode, whose routes call any method of the engine."""
    path = re.split("[?#]", question.path, maxsplit=1)[0]
    spellings = {path, posixpath.normpath(path)}  # httpx removes dots, the server unquotes
    routes = {"/" + unquote(spelling).strip("/") for spelling in spellings}
    if path.startswith(("//", "/\\")) or not routes.isdisjoint(NOT_ASKED):
        raise UsageError(
            f"{question.method} {question.path[:200]}: not sent, because it would change the server "
            "for all later requests, or go to another one"
        )


def _load_adapter(server: AskedServer) -> None:
    if server.adapter:
        with contextlib.suppress(httpx.TransportError):
            body = {"lora_name": ADAPTER_NAME, "lora_path": server.adapter}
            server.client.post("/v1/load_lora_adapter", json=body, timeout=_HEALTH_S)


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
        data = {name: form_text(field) for name, field in fields.items() if name != "file"}
        return {"data": data, "files": files}
    return {
        "content": question.body.replace(ADAPTER, adapter).encode("utf-8", "replace"),
        "headers": {"Content-Type": "application/json"},
    }
