"""Agents that the processes of one run share: vLLM is imported once, and an agent is forked from
that import for each process that asks.

``SharedAgents`` belongs to the process that outlives the others, such as the controller of
pytest-xdist, and listens on a socket in its run directory. The others get the socket's path, and
ask there for a ``ForkedAgent``. Where one cannot be forked (the import fails or leaves threads
behind), it is refused, and who asked imports vLLM itself.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import ChildDied, RegressError
from ...target_site.vllm_regress_target.protocol import (
    AGENT,
    Frame,
    FrameSocket,
    PeerClosed,
    ProtocolViolation,
)
from ...util.deadline import Deadline, wait_readable
from ...util.rundir import RunDir
from .agent import Agent
from .child_processes import ChildProcesses

VARIABLE = "VLLM_REGRESS_AGENTS"
"""The environment variable that tells processes where to ask for agents."""
_SECRET_BYTES = 32
"""A forked agent writes its tag over that of the agent it comes from, which must be as long."""
_LOG = logging.getLogger("vllm_regress.processes")


class AgentRefused(Exception):
    """There is no agent to fork from; the message says why."""


class ForkedAgent(Agent):
    """An agent that has imported vLLM from the beginning: a fork of one of the ``SharedAgents`` whose
    socket is ``address``. ``start`` raises ``AgentRefused`` where there is none."""

    def __init__(self, address: str, python: Path, run: RunDir, **facts: Any) -> None:
        super().__init__(python, run, **facts)
        self._address = address

    def start(self, deadline: Deadline) -> None:
        self.run.check()
        own = self.own_variables()
        folder = self.run.path / self.name
        folder.mkdir(exist_ok=True)
        fork = {"role": AGENT, "log": str(self.log), "cwd": str(folder), "own": own}
        request = {
            "python": str(self.python),
            "variables": {k: v for k, v in self.child_environment().items() if k not in own},
            "seconds": deadline.left_s,
            "fork": {**fork, "limits": {}, "limit_options": {}},
        }
        lease = FrameSocket(socket.socket(socket.AF_UNIX))
        try:
            reply = _ask(lease, self._address, request, deadline)
            channel, lifeline = (FrameSocket(socket.socket(fileno=fd)) for fd in lease.take_fds(2))
        except (OSError, PeerClosed, ProtocolViolation) as error:
            lease.close()
            raise AgentRefused(str(error)) from None
        except BaseException:
            lease.close()
            raise
        _LOG.info("%s: forked from a shared agent (log %s)", self.name, self.log)
        child = ChildProcesses(int(reply["nanny"]), lifeline, [channel, lease])
        try:
            self._begin(_ForkedProcess(child), channel, deadline)
        except ChildDied as error:
            self.stop()
            raise AgentRefused(str(error)) from None


def _ask(lease: FrameSocket, address: str, request: Frame, deadline: Deadline) -> Frame:
    """Return the reply of the shared agents. Raises ``AgentRefused``, and what sockets raise."""
    lease.sock.connect(address)
    lease.send(request, timeout_s=deadline.left_s, clock=deadline.clock)
    while (reply := lease.pop()) is None:
        if not wait_readable(deadline, lease) and deadline.passed:
            raise AgentRefused(f"no answer within {deadline.allowed_s:g} s")
    if "refused" in reply:
        raise AgentRefused(str(reply["refused"]))
    return reply


@dataclass(frozen=True)
class _ForkedProcess:
    """The nanny of a forked agent, which is no child of this process, in the place of a
    ``Supervised``."""

    child: ChildProcesses

    @property
    def pid(self) -> int:
        return self.child.nanny_pid

    def poll(self) -> int | None:
        if self.child.alive:
            return None
        return -signal.SIGKILL if self.child.exit_status is None else self.child.exit_status

    def wait_for_end(self, seconds: float) -> None:
        deadline = Deadline.after("end", seconds)
        while self.child.alive and not deadline.passed:
            wait_readable(deadline, self.child)

    def kill(self) -> None:
        self.child.kill(grace_s=0.0)


class _Origin(Agent):
    """An agent that others are forked from. ``variables``: those of the agents that ask."""

    def __init__(self, python: Path, run: RunDir, name: str, variables: Mapping[str, str]) -> None:
        super().__init__(python, run, name=name)
        self._variables = variables

    def child_environment(self) -> dict[str, str]:
        return {**self._variables, **self.own_variables()}


@dataclass
class _Shared:
    """One import of vLLM. ``lock`` is held by who asks the agent; ``users``: how many forked agents
    live."""

    agent: _Origin
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0

    def fork(self, request: Frame) -> tuple[int, list[int]]:
        """Return the pid of the nanny of a forked agent, and the descriptors of its channel and
        lifeline. Raises ``RegressError`` and ``AgentRefused``."""
        deadline = Deadline.after("import", float(request["seconds"]))
        with self.lock:
            if not self.agent.alive:
                self.agent.warmed = False
                self.agent.start(deadline)
            self.agent.warm(deadline)
            if self.agent.import_error or self.agent.spawns:
                raise AgentRefused(self.agent.spawns or str(self.agent.import_error))
            reply, fds = self.agent.fork(request["fork"], deadline)
            return int(reply["nanny"]), fds


class SharedAgents:
    """Listens at ``address`` for processes that ask for an agent, until ``close``.

    A process keeps its connection as long as its agent lives. Agents of the same interpreter and the
    same variables come from the same import. ``idle``: how many imports are kept for the next one who
    asks when nobody uses them; each takes as much memory as vLLM with its modules. Raises ``OSError``
    if there is no room for a socket.
    """

    def __init__(self, *, idle: int = 0) -> None:
        self._idle = idle
        self._run = RunDir.create(secret_bytes=_SECRET_BYTES)
        self.address = str(self._run.path / "agents")
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(self.address)
            self._listener.listen()
        except OSError:
            self._listener.close()
            self._run.remove()
            raise
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._closed = False
        self._shared: dict[tuple[str, frozenset[tuple[str, str]]], _Shared] = {}
        """By interpreter and variables, the least recently used first."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End all agents."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # it wakes ``accept``
        self._listener.close()
        with self._lock:
            shared = list(self._shared.values())
            self._shared.clear()
        for each in shared:
            each.agent.stop()
        self._run.remove()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._serve, args=(FrameSocket(connection),), daemon=True
            ).start()

    def _serve(self, connection: FrameSocket) -> None:
        with contextlib.closing(connection), contextlib.suppress(PeerClosed, ProtocolViolation):
            request = connection.receive()
            with self._used(request) as shared:
                try:
                    nanny, fds = shared.fork(request)
                except (RegressError, AgentRefused, OSError) as error:
                    connection.send({"refused": str(error)})
                    return
                try:
                    connection.send({"nanny": nanny}, fds)
                finally:
                    for fd in fds:
                        os.close(fd)
                connection.receive()  # until it is closed

    @contextlib.contextmanager
    def _used(self, request: Frame) -> Iterator[_Shared]:
        python, variables = request["python"], request["variables"]
        key = (python, frozenset(variables.items()))
        with self._lock:
            shared = self._shared.pop(key, None)
            if shared is None:
                name = f"shared-{next(self._numbers)}"
                shared = _Shared(_Origin(Path(python), self._run, name, variables))
            self._shared[key] = shared
            shared.users += 1
        try:
            yield shared
        finally:
            for unused in self._left(shared):
                unused.agent.stop()

    def _left(self, shared: _Shared) -> list[_Shared]:
        """Record that a user has gone; return agents that are no longer kept."""
        with self._lock:
            shared.users -= 1
            idle = [key for key, each in self._shared.items() if not each.users]
            return [self._shared.pop(key) for key in idle[: len(idle) - self._idle]]


@contextlib.contextmanager
def listening(*, idle: int = 0) -> Iterator[str]:
    """Share agents meanwhile. Returns where to ask for them: at this process, or at the one where it
    asks itself; empty if nowhere, because no socket can be made (a full disk, a long path)."""
    if address := os.environ.get(VARIABLE, ""):
        yield address
        return
    try:
        shared = SharedAgents(idle=idle)
    except OSError as error:
        _LOG.info("agents are not shared: %s", error)
        yield ""
        return
    with contextlib.closing(shared):
        yield shared.address


@contextlib.contextmanager
def sharing(*, idle: int = 0) -> Iterator[None]:
    """Let the processes that this one starts meanwhile share agents."""
    before = os.environ.get(VARIABLE)
    with listening(idle=idle) as address:
        os.environ[VARIABLE] = address
        try:
            yield
        finally:
            del os.environ[VARIABLE]
            if before is not None:
                os.environ[VARIABLE] = before
