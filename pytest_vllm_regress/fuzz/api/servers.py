"""The servers that are asked: one for each kind of routes, with the options that register most of
them; and how they are started."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import httpx

from ...engines.checkpoints.adapters import Adapter, ensure_adapter
from ...engines.processes.logs import LogWindow
from ...engines.server import Server
from ...engines.session import Session
from ...engines.settings import Limits
from ...engines.spec import EngineSpec
from ...errors import ChildError, LimitExceeded, Unsupported
from ...surveys.states.growth import Growth, measure_growth
from ...util.deadline import Deadline
from ...util.paths import writable_root
from ...util.sizes import GIB

MODEL = "m"
"""Name of the model in requests."""
ADAPTER = "{adapter}"
"""Stands for the path of a forged adapter in a body."""
ADAPTER_NAME = "a"
"""Name of the adapter that is loaded when a server starts."""


@dataclasses.dataclass(frozen=True)
class ServerKind:
    """A kind of server.

    Attributes:
        spec: without the options of ``optional``.
        optional: options of `vllm serve` that register more routes; those that a release lacks are
            left out.
        adapters: whether an adapter is loaded.
        probe: path and body of the request that a working engine answers with status 200.
    """

    spec: EngineSpec
    probe: tuple[str, Mapping[str, Any]]
    optional: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    adapters: bool = False

    def options(self) -> str:
        """Return the options of `vllm serve` for people, without the model."""
        options = {**self.spec.extra, **self.spec.server_options, **self.optional}
        flags = [
            f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
            for name, value in options.items()
        ]
        variables = [f"{name}={value}" for name, value in self.spec.env.items()]
        return " ".join([*variables, "vllm serve MODEL", *flags])


def _kind(probe: str, body: Mapping[str, Any], **spec: Any) -> ServerKind:
    extra = {"served_model_name": MODEL, **spec.pop("extra", {})}
    return ServerKind(EngineSpec.create(extra=extra, **spec), (probe, {"model": MODEL, **body}))


_COMPLETION = {"prompt": "Hello", "max_tokens": 1}

SERVERS: Mapping[str, ServerKind] = MappingProxyType(
    {
        "text": dataclasses.replace(
            _kind(
                "/v1/completions",
                _COMPLETION,
                extra={"enable_lora": True},
                server_options={"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
                env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": "1"},
            ),
            optional={"enable_tokenizer_info_endpoint": True, "enable_server_load_tracking": True},
            adapters=True,
        ),
        "vision": _kind("/v1/completions", _COMPLETION, model="vision", max_model_len=1024),
        "embed": _kind("/v1/embeddings", {"input": "Hello"}, task="embed"),
        "classify": _kind("/classify", {"input": "Hello"}, task="classify", model="classifier"),
        "score": _kind("/score", {"text_1": "a", "text_2": "b"}, task="score", model="reranker"),
        "speech": _kind("/tokenize", {"prompt": "Hello"}, model="speech", max_model_len=448),
    }
)

LIMITS = Limits(memory_bytes=6 * GIB, option_names={})
"""A request that makes a server take more memory has killed it.

Stock servers of forged models take 2 GiB.
"""


class Log(Protocol):
    """The log of a server since ``restart``."""

    def restart(self) -> None: ...

    def text(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class AskedServer:
    """A running server.

    Attributes:
        adapter: path of the adapter that requests may load; empty if the server takes none.
        health: returns dead, stuck, slow or idle, for a server that does not answer.
        ended: returns why a server that takes no connections has ended; empty if it has not.
        stop: ends the server. It may be dead already.
        growth: sends requests by a function that gets their numbers, this many, and returns the
            growth of each process's memory.
    """

    client: httpx.Client
    log: Log
    health: Callable[[], str]
    ended: Callable[[], str]
    stop: Callable[[], None]
    growth: Callable[[Callable[[int], object], int], Mapping[str, Growth]]
    adapter: str = ""


class Starter(Protocol):
    """Starts servers of one environment."""

    def start(self, name: str) -> AskedServer:
        """Start a server of a kind. Raises ``Unsupported`` if this release has no such server."""
        ...


class ServerStarter:
    """Starts stock servers, one at a time, because a session is not shared between threads."""

    def __init__(self, session: Session, environment: str) -> None:
        self._session, self._target = session, session.target(environment)
        self._lock = threading.Lock()
        self._refused: dict[str, set[str]] = {}

    def start(self, name: str) -> AskedServer:
        with self._lock:
            kind = SERVERS[name]
            server = self._server(name, kind)
            place = writable_root() / "adapters"
            adapter = kind.adapters and ensure_adapter(
                Adapter(ADAPTER_NAME), server.model_path, place
            )
        client = _kept_connection(server)
        return AskedServer(
            client,
            LogWindow(server.child.log),
            lambda: server.health().state,
            lambda: _end_of(server),
            lambda: _stop(server, client),
            lambda send, requests: measure_growth(
                server, send, requests=requests, warm_up=requests // 4
            ),
            str(adapter or ""),
        )

    def _server(self, name: str, kind: ServerKind) -> Server:
        """Start a server without the optional options that this release refuses.

        It finds only the programs of its environment and of the system: a route that calls uv
        answers the same on every machine.
        """
        refused = self._refused.setdefault(name, set())
        path = os.pathsep.join([str(self._target.python.parent), os.defpath])
        while True:
            left = {name: value for name, value in kind.optional.items() if name not in refused}
            spec = kind.spec.replace(
                server_options={**kind.spec.server_options, **left},
                env={**kind.spec.env, "PATH": path},
            )
            try:
                running: Server = self._session.start(
                    "serve", self._target, spec, user="fuzz api", fresh=True
                )
                return running
            except Unsupported:
                if not left:
                    raise
                refused.add(next(iter(left)))


def _end_of(server: Server) -> str:
    """Return what ended a server: a limit, or itself; empty if it lives."""
    try:
        server.child.check_alive(Deadline.after("request", 1.0))
    except LimitExceeded as error:
        return f"killed for its {error.limit}"
    except ChildError:
        return "dead"
    return ""


def _kept_connection(server: Server) -> httpx.Client:
    """Return a client that keeps its connection, which is proven to be the server's when it is
    made: ten times as fast as one for each request."""
    hooks = {"request": [server.listener.guard]}
    return httpx.Client(
        base_url=server.root_url, headers=server.client.headers, trust_env=False, event_hooks=hooks
    )


def _stop(server: Server, client: httpx.Client) -> None:
    client.close()
    with contextlib.suppress(ChildError):
        server.child.kill()
        server.stop()
