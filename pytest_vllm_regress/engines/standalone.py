"""Engines on demand: for fixtures that outlive a test, for the length of a command, and for scripts and notebooks until they end."""

from __future__ import annotations

import atexit
import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal, overload

from ..errors import UsageError
from ..util.deadline import Deadline
from ..util.signals import terminate_as_interrupt
from ..util.text import printable
from .engine import AsyncEngine, Engine
from .server import Server
from .session import Session
from .settings import Settings, Timeouts
from .spec import EngineSpec, Front
from .target import Target

Lent = contextlib.AbstractContextManager
USER = "vllm_engines"


class Engines:
    """Gives engines and servers of one environment. They are those that tests of the same spec share, and stay until they are released.

    ``on_reply`` is told the phase of each answer.
    """

    def __init__(
        self, session: Session, target: Target, on_reply: Callable[[str], None] | None = None, user: str = USER
    ) -> None:
        self.target = target
        self._session = session
        self._on_reply = on_reply
        self._user = user

    @overload
    def __call__(
        self,
        spec: EngineSpec | None = None,
        *,
        front: Literal["offline"] = "offline",
        timeout: float | None = None,
        **fields: Any,
    ) -> Engine: ...
    @overload
    def __call__(
        self, spec: EngineSpec | None = None, *, front: Literal["async"], timeout: float | None = None, **fields: Any
    ) -> AsyncEngine: ...
    @overload
    def __call__(
        self, spec: EngineSpec | None = None, *, front: Literal["serve"], timeout: float | None = None, **fields: Any
    ) -> Server: ...
    def __call__(
        self, spec: EngineSpec | None = None, *, front: Front = "offline", timeout: float | None = None, **fields: Any
    ) -> Engine | AsyncEngine | Server:
        """A running engine or server for ``spec``, or for an EngineSpec of these ``fields``. ``timeout`` in seconds replaces the start phase's.

        It is not stopped for others until ``release``, or until the session ends. Raises ``UsageError`` for an unknown front or field,
        ``LimitExceeded`` when more engines are held than may run at the same time, and what starting an engine raises.
        """
        if spec is not None and fields:
            raise UsageError(f"give an EngineSpec or its fields, not both: {', '.join(sorted(fields))}")
        known: dict[str, Callable[..., Any]] = {
            "offline": self._session.engine,
            "async": self._session.async_engine,
            "serve": self._session.server,
        }
        if front not in known:
            raise UsageError(f"front={front!r} is not one of {', '.join(known)}")
        wanted = spec or EngineSpec.create(**fields)
        engine: Engine | AsyncEngine | Server = known[front](
            self.target, wanted, user=self._user, fresh=False, timeout=timeout
        )
        self._session.hold(self.target, wanted, front)
        if self._on_reply is not None:
            self._on_reply("start")
            engine.child.on_reply = self._on_reply
        return engine

    def release(self, engine: Engine | AsyncEngine | Server) -> None:
        """The engine is needed no longer: it may be stopped for another one, and is reused until then. As often as it was asked for."""
        front: Front = "serve" if isinstance(engine, Server) else engine.front
        self._session.release(self.target, engine.spec, front)


@contextlib.contextmanager
def bare_session(progress: Callable[[str], None] = lambda line: None) -> Iterator[Session]:
    """A session with default settings, closed at the end; ``progress`` gets a line for whatever takes long."""
    session = _session(Settings(), progress)
    with terminate_as_interrupt():
        try:
            yield session
        finally:
            session.close()


@overload
def engine(
    environment: str | None = None,
    spec: EngineSpec | None = None,
    *,
    front: Literal["offline"] = "offline",
    device: str = "auto",
    timeout: float | None = None,
    **fields: Any,
) -> Lent[Engine]: ...
@overload
def engine(
    environment: str | None = None,
    spec: EngineSpec | None = None,
    *,
    front: Literal["async"],
    device: str = "auto",
    timeout: float | None = None,
    **fields: Any,
) -> Lent[AsyncEngine]: ...
@overload
def engine(
    environment: str | None = None,
    spec: EngineSpec | None = None,
    *,
    front: Literal["serve"],
    device: str = "auto",
    timeout: float | None = None,
    **fields: Any,
) -> Lent[Server]: ...
@contextlib.contextmanager
def engine(
    environment: str | None = None,
    spec: EngineSpec | None = None,
    *,
    front: Any = "offline",
    device: str = "auto",
    timeout: float | None = None,
    **fields: Any,
) -> Iterator[Any]:
    """A running engine or server outside pytest: ``with engine("vllm-0.8.5", tensor_parallel_size=2) as e``. Not to be shared between threads.

    ``environment``: a name or an interpreter's path (default: this interpreter, where it has vLLM). ``fields`` are those of EngineSpec. vLLM is
    imported once for each environment, and an engine of the same spec is used again: it lives on after the block, until room is
    needed for another or the process ends. ``timeout`` in seconds for the start. Raises what starting an engine raises.
    """
    engines = _engines(environment, device)
    lent = engines(spec, front=front, timeout=timeout, **fields)
    try:
        yield lent
    finally:
        engines.release(lent)


@functools.cache
def _engines(environment: str | None, device: str) -> Engines:
    """One session for each environment and device, closed when the process ends."""
    settings = Settings(environments=(environment,) if environment else (), device=device)
    session = _session(settings, lambda line: print(printable(f"vllm-regress: {line}"), file=sys.stderr, flush=True))
    atexit.register(session.close)
    return Engines(session, session.target(session.environment_names()[0]), user="engine")


def _session(settings: Settings, progress: Callable[[str], None]) -> Session:
    timeouts = Timeouts()
    return Session(settings, lambda phase, seconds: Deadline.after(phase, seconds or timeouts.of(phase)), progress)
