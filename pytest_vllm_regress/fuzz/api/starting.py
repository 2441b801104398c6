"""Servers of one environment, started on demand."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

import httpx

from ...engines.checkpoints.adapters import Adapter, ensure_adapter
from ...engines.processes.logs import LogWindow
from ...engines.server import Server
from ...engines.session import Session
from ...engines.settings import Limits
from ...errors import ChildError, LimitExceeded, Unsupported
from ...surveys.states.growth import Growth, measure_growth
from ...util.deadline import Deadline
from ...util.paths import writable_root
from ...util.sizes import GIB
from .servers import ADAPTER_NAME, SERVERS, ServerKind

LIMITS = Limits(memory_bytes=6 * GIB, option_names={})
"""A request that makes a server take more memory has killed it.

Stock servers of forged models take 2 GiB.
"""


class Log(Protocol):
    """The log of a server since ``restart``."""

    def restart(self) -> None: ...

    def text(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class Running:
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

    @property
    def environment(self) -> str: ...

    @property
    def versions(self) -> Mapping[str, str]: ...

    def start(self, name: str) -> Running:
        """Start a server of a kind. Raises ``Unsupported`` if this release has no such server."""
        ...


class ServerStarter:
    """Starts stock servers, one at a time, because a session is not shared between threads."""

    def __init__(self, session: Session, environment: str) -> None:
        self.environment = environment
        self._session, self._target = session, session.target(environment)
        if self._target.device == "none":
            raise Unsupported(f"{environment} has no servers", needs="vLLM")
        self._lock = threading.Lock()
        self._refused: dict[str, set[str]] = {}

    @property
    def versions(self) -> Mapping[str, str]:
        return self._target.versions

    def start(self, name: str) -> Running:
        with self._lock:
            kind = SERVERS[name]
            server = self._server(name, kind)
            adapter = ""
            if kind.adapters:
                adapter = str(
                    ensure_adapter(
                        Adapter(ADAPTER_NAME), server.model_path, writable_root() / "adapters"
                    )
                )
        client = _kept_connection(server)
        return Running(
            client,
            _MaskedLog(LogWindow(server.child.log)),
            lambda: server.health().state,
            lambda: _end_of(server),
            lambda: _stop(server, client),
            lambda send, requests: measure_growth(
                server, send, requests=requests, warm_up=requests // 4
            ),
            adapter,
        )

    def _server(self, name: str, kind: ServerKind) -> Server:
        """Start a server without the optional options that this release refuses.

        It finds only the programs of its environment and of the system: a route that calls uv
        answers the same on every machine.
        """
        refused = self._refused.setdefault(name, set())
        env = {
            **kind.spec.env,
            "PATH": os.pathsep.join([str(self._target.python.parent), os.defpath]),
        }
        while True:
            left = [option for option in kind.optional if option not in refused]
            options = {
                **kind.spec.server_options,
                **{option: kind.optional[option] for option in left},
            }
            try:
                spec = kind.spec.replace(server_options=options, env=env)
                return self._session.server(self._target, spec, user="fuzz api", fresh=True)
            except Unsupported:
                if not left:
                    raise
                refused.add(left[0])


class _MaskedLog:
    def __init__(self, window: LogWindow) -> None:
        self._window = window

    def restart(self) -> None:
        self._window.restart()

    def text(self) -> str:
        return str(self._window.text())


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
