"""Engines on demand, for fixtures with a wider scope than a test, for commands, and for scripts and
notebooks."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, overload

from ..defaults import MAX_ENGINES
from ..errors import UsageError
from ..util.deadline import Deadline, check_seconds
from ..util.masking import mask
from ..util.signals import terminate_as_interrupt
from ..util.text import printable
from .engine import AsyncEngine, Engine
from .probe import Probe
from .processes.child import Loan
from .server import Server
from .session import Session
from .settings import Limits, Settings, Timeouts
from .spec import EngineSpec, Front, front_named, full_names
from .target import Target

Lent = AbstractContextManager
USER = "vllm_engines"


class Engines:
    """Provides engines and servers of one environment. Tests with the same spec share them, and
    they stay until they are released.

    ``on_reply`` is called with the phase of each answer. ``defaults``: fields of specs that are made
    of fields. ``remember``: returns whether a spec that could not start is tried again.
    """

    def __init__(
        self,
        session: Session,
        target: Target,
        on_reply: Callable[[str], None] | None = None,
        user: str = USER,
        *,
        defaults: Mapping[str, Any] = MappingProxyType({}),
        remember: Callable[[], bool] = lambda: False,
    ) -> None:
        self.target = target
        self._defaults = defaults
        self._remember = remember
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
        self,
        spec: EngineSpec | None = None,
        *,
        front: Literal["async"],
        timeout: float | None = None,
        **fields: Any,
    ) -> AsyncEngine: ...
    @overload
    def __call__(
        self,
        spec: EngineSpec | None = None,
        *,
        front: Literal["serve"],
        timeout: float | None = None,
        **fields: Any,
    ) -> Server: ...
    def __call__(
        self,
        spec: EngineSpec | None = None,
        *,
        front: Front = "offline",
        timeout: float | None = None,
        **fields: Any,
    ) -> Engine | AsyncEngine | Server:
        """Return a running engine or server for ``spec``, or for an EngineSpec with these
        ``fields``.

        ``timeout`` in seconds replaces that of the start phase. The engine is not stopped to make
        room for others until ``release`` or the end of the session. Raises ``UsageError`` for an
        unknown front or field, ``LimitExceeded`` if more engines are held than may run at the same
        time, and the errors of starting an engine.
        """
        if spec is not None and fields:
            raise UsageError(
                f"give an EngineSpec or its fields, not both: {', '.join(sorted(fields))}"
            )
        spec = spec or EngineSpec.create(**{**self._defaults, **full_names(fields)})
        engine: Engine | AsyncEngine | Server = self._session.start(
            front_named(front),
            self.target,
            spec,
            user=self._user,
            fresh=False,
            timeout=timeout,
            remember=self._remember(),
        )
        self._session.engines.hold((self.target.name, spec, front))
        if self._on_reply is not None:
            self._on_reply("start")
            engine.child.listen(self._on_reply)
        return engine

    def warm(self) -> None:
        """Import vLLM now, so that the first engine need not wait for it."""
        self._session.agents.warm(self.target)

    def release(self, engine: Engine | AsyncEngine | Server) -> None:
        """Release an engine, once for each call that returned it.

        It is reused until it is stopped to make room for another one.
        """
        self._session.engines.release((self.target.name, engine.spec, engine.front))

    def discard(self, server: Server) -> None:
        """Release a server and stop it, so that nobody sees the state that it has now.

        One that others hold stays for them.
        """
        self.release(server)
        self._session.engines.give_up((self.target.name, server.spec, server.front))


@contextmanager
def bare_session(
    progress: Callable[[str], None] = lambda line: None,
    *,
    device: str = "auto",
    max_engines: int = MAX_ENGINES,
    limits: Limits | None = None,
    leftovers: str = Settings().leftovers,
) -> Iterator[Session]:
    """Provide a session with default settings and close it at the end.

    ``progress`` gets a line for each step that takes long. ``leftovers``: with ``KEPT_REQUESTS``,
    engines can be asked for requests that they keep.
    """
    limits = limits or Limits(option_names={})  # without pytest no option sets a limit
    settings = Settings(device=device, max_engines=max_engines, limits=limits, leftovers=leftovers)
    session = Session(settings, _deadline_for, progress)
    with terminate_as_interrupt():
        try:
            yield session
        finally:
            session.close()


def probe_in(session: Session, target: Target, file: Path) -> Probe:
    """Return a probe that calls functions of ``file``, or built-in ones, in one process of
    ``target``. The session ends the process."""
    loan = Loan(session.default_early_exit())
    return Probe(lambda: session.probe(target, USER), file, _deadline_for, loan)


def run_client(server: Server, command: Sequence[str]) -> int:
    """Run a command that sends requests to ``server``. Returns its exit status; after a signal 128
    and the signal's number.

    In its arguments ``{url}``, ``{key}`` and ``{model}`` are replaced. The variables
    VLLM_REGRESS_URL, VLLM_REGRESS_MODEL, OPENAI_BASE_URL and OPENAI_API_KEY tell it the same.
    Raises ``OSError`` if it cannot be run.
    """
    values = {"{url}": server.root_url, "{key}": server.api_key, "{model}": server.model}
    words = [
        functools.reduce(lambda text, name: text.replace(name, values[name]), values, word)
        for word in command
    ]
    variables = {
        "VLLM_REGRESS_URL": server.root_url,
        "VLLM_REGRESS_MODEL": server.model,
        "OPENAI_BASE_URL": server.base_url,
        "OPENAI_API_KEY": server.api_key,
    }
    status = subprocess.call(words, env={**os.environ, **variables})
    return status if status >= 0 else 128 - status


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
@contextmanager
def engine(
    environment: str | None = None,
    spec: EngineSpec | None = None,
    *,
    front: Any = "offline",
    device: str = "auto",
    timeout: float | None = None,
    **fields: Any,
) -> Iterator[Any]:
    """Provide a running engine or server outside pytest: ``with engine("vllm-0.8.5",
    tensor_parallel_size=2) as e``. Do not share it between threads.

    ``environment``: a name or the path of an interpreter (default: this interpreter, if it has
    vLLM). ``fields``: fields of EngineSpec. vLLM is imported once per environment, and engines with
    the same spec are reused: an engine stays after the block until room is needed for another or
    the process ends. ``timeout`` in seconds for the start. Raises the errors of starting an engine.
    """
    engines = _engines(environment, device)
    lent = engines(spec, front=front, timeout=timeout, **fields)
    try:
        yield lent
    finally:
        engines.release(lent)


@functools.cache
def _engines(environment: str | None, device: str) -> Engines:
    """Return the engines of an environment and device.

    Their session is closed when the process ends.
    """
    return engines_until_exit(
        Settings(environments=(environment,) if environment else (), device=device), "engine"
    )


def engines_until_exit(settings: Settings, user: str) -> Engines:
    """Return engines of the first environment of ``settings``.

    Their session is closed when the process ends. Progress goes to standard error.
    """
    session = Session(
        settings,
        _deadline_for,
        lambda line: print(printable(mask(f"vllm-regress: {line}")), file=sys.stderr, flush=True),
    )
    atexit.register(session.close)
    return Engines(session, session.target(session.environment_names()[0]), user=user)


def _deadline_for(phase: str, seconds: float | None) -> Deadline:
    check_seconds(seconds)
    return Deadline.after(phase, Timeouts().of(phase) if seconds is None else seconds)
