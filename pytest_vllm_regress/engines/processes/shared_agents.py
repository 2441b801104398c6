"""Agents that the workers of one pytest run share: vLLM is imported once, and each worker's agent is
forked from that import.

``SharedAgents`` belongs to the controller of pytest-xdist, which outlives its workers, and listens on
a socket in its run directory. A worker gets the socket's path, and asks there for a ``ForkedAgent``.
Where one cannot be forked (the import fails or leaves threads behind), it is refused, and the worker
imports vLLM itself.
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

from ...errors import ChildError, RegressError
from ...target_site.vllm_regress_target.nanny import TAG
from ...target_site.vllm_regress_target.protocol import (
    AGENT,
    Frame,
    FrameSocket,
    FrameTimeout,
    PeerClosed,
    ProtocolViolation,
)
from ...util.deadline import Deadline, wait_readable
from ...util.rundir import RunDir
from . import process_tree
from .agent import NANNIES_S, Agent

_SECRET_BYTES = 32
"""A forked agent writes its tag over that of the import, which must be as long."""
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
        # The variables of the run are not passed as "env": if the import has read one of them, the
        # agent would have to be spawned.
        fork = {
            "role": AGENT,
            "log": str(self.log),
            "cwd": str(self.run.path),
            "tag": own[TAG],
            "grace_s": NANNIES_S,
        }
        request = {
            "python": str(self.python),
            "variables": {k: v for k, v in self.child_environment().items() if k not in own},
            "seconds": deadline.left_s,
            "fork": fork,
        }
        lease = FrameSocket(socket.socket(socket.AF_UNIX))
        try:
            reply = _ask(lease, self._address, request, deadline)
            channel, lifeline = (FrameSocket(socket.socket(fileno=fd)) for fd in lease.take_fds(2))
        except (OSError, FrameTimeout, PeerClosed, ProtocolViolation) as error:
            lease.close()
            raise AgentRefused(str(error)) from None
        except BaseException:
            lease.close()
            raise
        _LOG.info("%s: forked from a shared import (log %s)", self.name, self.log)
        try:
            self._begin(_ForkedNanny(int(reply["nanny"]), lifeline, lease), channel, deadline)
        except ChildError as error:
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


class _ForkedNanny:
    """The nanny of a forked agent. It is not a child of this process, so it reports the end of the
    agent over ``lifeline``.

    ``lease``: the connection that keeps the import.
    """

    def __init__(self, pid: int, lifeline: FrameSocket, lease: FrameSocket) -> None:
        self.pid = pid
        self._process = process_tree.find(pid)
        self._lifeline, self._lease = lifeline, lease
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            try:
                frame = self._lifeline.pop()
            except (PeerClosed, ProtocolViolation):
                self._status = -signal.SIGKILL
            else:
                self._status = int(frame["code"]) if frame else None
        return self._status

    def wait_for_end(self, seconds: float) -> None:
        deadline = Deadline.after("end", seconds)
        while self.poll() is None and wait_readable(deadline, self._lifeline):
            pass

    def kill(self) -> None:
        self.poll()
        process_tree.terminate([self._process] if self._process else [], grace_s=0.0)
        self._lifeline.close()
        self._lease.close()


class _Origin(Agent):
    """The agent that imports vLLM and from which others are forked. ``variables``: the environment
    variables that these have in common."""

    def __init__(self, python: Path, run: RunDir, name: str, variables: Mapping[str, str]) -> None:
        super().__init__(python, run, name=name)
        self._variables = variables

    def child_environment(self) -> dict[str, str]:
        return {**self._variables, **self.own_variables()}

    def abort(self) -> None:
        """Kill the process, which ends the wait of the thread that is using it."""
        if self._process is not None:
            self._process.kill()


@dataclass
class _Import:
    """One import of vLLM, in a process of its own. ``lock`` is held by the thread that asks it;
    ``users``: how many agents hold a lease on it."""

    agent: _Origin
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    ended: bool = False

    def fork(self, request: Frame) -> tuple[int, list[int]]:
        """Return the pid of the nanny of a forked agent, and the descriptors of its channel and
        lifeline. Raises ``RegressError`` and ``AgentRefused``."""
        deadline = Deadline.after("import", float(request["seconds"]))
        with self.lock:
            if self.ended:
                raise AgentRefused("it has ended")
            if not self.agent.alive:
                self.agent.warmed = False
                self.agent.start(deadline)
            self.agent.warm(deadline)
            if self.agent.import_error or self.agent.spawns:
                raise AgentRefused(self.agent.spawns or str(self.agent.import_error))
            reply, fds = self.agent.fork(request["fork"], deadline)
            return int(reply["nanny"]), fds

    def end(self) -> None:
        """End the process. Agents already forked from it keep running."""
        self.ended = True
        if not self.lock.acquire(blocking=False):
            self.agent.abort()
            self.lock.acquire()
        self.agent.stop()
        self.lock.release()


class SharedAgents:
    """Listens at ``address`` for workers that ask for an agent, until ``close``.

    A worker keeps its connection as long as its agent lives, and an import ends with the last one.
    Agents of the same interpreter and the same variables come from the same import. Raises
    ``OSError`` if there is no room for a socket.
    """

    def __init__(self) -> None:
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
        self._imports: dict[tuple[str, frozenset[tuple[str, str]]], _Import] = {}
        """By interpreter and variables."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End the imports. Forked agents are left to those who asked for them."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # it wakes ``accept``
        with self._lock:
            self._closed = True
            imports = list(self._imports.values())
        for each in imports:
            each.end()
        self._run.remove()

    def _accept(self) -> None:
        with self._listener, contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(
                    target=self._serve, args=(FrameSocket(connection),), daemon=True
                ).start()

    def _serve(self, connection: FrameSocket) -> None:
        with contextlib.closing(connection), contextlib.suppress(PeerClosed, ProtocolViolation):
            request = connection.receive()
            with self._import_for(request) as imported:
                try:
                    nanny, fds = imported.fork(request)
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
    def _import_for(self, request: Frame) -> Iterator[_Import]:
        """Keep the import that fits ``request`` from ending meanwhile."""
        python, variables = request["python"], request["variables"]
        key = (python, frozenset(variables.items()))
        with self._lock:
            if key not in self._imports:
                name = f"import-{next(self._numbers)}"
                self._imports[key] = _Import(_Origin(Path(python), self._run, name, variables))
            imported = self._imports[key]
            imported.users += 1
            imported.ended |= self._closed
        try:
            yield imported
        finally:
            with self._lock:
                imported.users -= 1
                is_last = not imported.users
                if is_last:
                    del self._imports[key]
            if is_last:
                imported.end()


@contextlib.contextmanager
def listening() -> Iterator[str]:
    """Share agents meanwhile. Yields the socket's path; empty if there is no room for one (a full
    disk, a long path)."""
    try:
        shared = SharedAgents()
    except OSError as error:
        _LOG.info("agents are not shared: %s", error)
        yield ""
        return
    with contextlib.closing(shared):
        yield shared.address
