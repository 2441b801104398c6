"""The servers that are asked: one for each kind of routes, with the options that register most of
them (``data/fuzz/servers.toml``); and how they are started."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from ...engines.checkpoints.adapters import Adapter, ensure_adapter
from ...engines.processes.logs import LogWindow
from ...engines.server import Server
from ...engines.session import Session
from ...engines.settings import Limits
from ...engines.spec import EngineSpec
from ...errors import ChildError, LimitExceeded, Unsupported
from ...surveys.states.growth import Growth, measure_growth
from ...util import codec
from ...util.codec import load
from ...util.deadline import Deadline
from ...util.paths import DATA, writable_root
from ...util.sizes import GIB

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
