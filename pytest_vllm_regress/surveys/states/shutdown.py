"""How a server ends: by which signal, idle or in the middle of a stream, how fast, and what it
leaves behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from ...engines.http import listeners
from ...engines.processes import process_tree
from ...engines.server import Server
from ...engines.spec import EngineSpec
from ...errors import NotAtWork, UsageError
from .requests import DRAIN_S, RUNS, Stream, describe_end, paced, wait_for_end

END_S = 15.0
LEAVE_S = 5.0
"""Seconds that the other processes get after the front process has ended."""
TOKENS = 80
_BEGIN_S = 30.0
BETWEEN_S = 0.1
"""Seconds between two signals."""
IDLE, STREAMING = "idle", "streaming"


@dataclass(frozen=True)
class Ending:
    """What happens to a server: ``number``, sent ``times`` to the process of role ``target``.

    ``drains``: it may finish its requests.
    """

    number: signal.Signals
    target: str = "server"
    times: int = 1
    drains: bool = False


ENDINGS: Mapping[str, Ending] = {
    "SIGTERM": Ending(signal.SIGTERM),
    "SIGTERM twice": Ending(signal.SIGTERM, times=2),
    "SIGTERM, time to drain": Ending(signal.SIGTERM, drains=True),
    "SIGINT": Ending(signal.SIGINT),
    "SIGKILL of the server": Ending(signal.SIGKILL),
    "SIGKILL of the core": Ending(signal.SIGKILL, "core"),
    "SIGKILL of a worker": Ending(signal.SIGKILL, "worker"),
}
ROWS = {
    f"{name}, {load}": (ending, load == STREAMING)
    for (name, ending), load in itertools.product(ENDINGS.items(), (IDLE, STREAMING))
    if load == STREAMING or not ending.drains
}
"""Every ending of an idle server and of one that streams, by the name of its row."""


@dataclass(frozen=True)
class ShutdownRow:
    """How a server ended. ``exit``: its exit status in words, or ``RUNS`` after ``END_S``.
    ``seconds``: until it had ended.

    ``stream``: how the stream ended, after ``tokens``; empty for an idle server. ``left``: roles of
    processes that ran on, the port, shared memory.
    ``absent``: why the release has no such ending; then nothing else is known.
    """

    exit: str = ""
    seconds: float | None = None
    stream: str = ""
    tokens: int = 0
    left: tuple[str, ...] = ()
    absent: str = ""

    @property
    def summary(self) -> str:
        """How the server ended, after how many seconds, and how its stream ended."""
        seconds = "" if self.seconds is None else f", {self.seconds:g} s"
        stream = f", {self.stream}" if self.stream else ""
        left = f", left: {', '.join(self.left)}" if self.left else ""
        return f"{self.exit}{seconds}{stream}{left}"


def spec_of(name: str) -> EngineSpec:
    """Return the engine to which the ending of this row happens."""
    ending, _ = ROWS[name]
    if ending.target == "worker":
        return paced(tensor_parallel_size=2)
    return paced(extra={"shutdown_timeout": DRAIN_S}) if ending.drains else paced()


def observe(server: Server, name: str, end_s: float = END_S) -> ShutdownRow:
    """Do to the server what the row of this name says and return how it ended, within ``end_s``.

    Raises ``NotAtWork`` if the stream does not begin.
    """
    ending, streaming = ROWS[name]
    child, port = server.child, httpx.URL(server.root_url).port or 0
    stream = Stream(server, TOKENS) if streaming else None
    if stream is not None and not stream.wait_for_first(_BEGIN_S):
        raise NotAtWork(f"the stream did not begin within {_BEGIN_S:g} s: {stream.outcome(0)}")
    segments = process_tree.shared_memory(child.processes())
    begun = time.monotonic()
    server.signal(ending.number, ending.target)
    for _ in range(ending.times - 1):
        child.pause(BETWEEN_S)
        with contextlib.suppress(UsageError):  # the process has ended
            server.signal(ending.number, ending.target)
    wait_for_end(child, end_s)
    end = describe_end(server)
    seconds = round(time.monotonic() - begun, 1)
    outcome = stream.outcome(LEAVE_S) if stream is not None else ""
    return ShutdownRow(
        end,
        None if end == RUNS else seconds,
        outcome,
        stream.received if stream is not None else 0,
        () if end == RUNS else _left_behind(server, port, segments),
    )


def _left_behind(server: Server, port: int, segments: set[str]) -> tuple[str, ...]:
    """Return what outlived the server: roles of processes, ``port`` if something listens, ``shared
    memory`` that nobody uses any more."""
    others = [
        process for process in server.child.processes() if not process_tree.is_helper(process)
    ]
    running = {process.pid for process in process_tree.wait_until_gone(others, LEAVE_S)}
    left: list[str] = [info.role for info in server.processes() if info.pid in running]
    left += ["port"] * bool(listeners.on_port(port))
    return (*left, *["shared memory"] * any(map(os.path.exists, segments)))
