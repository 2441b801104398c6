"""What the health addresses of a server say while the engine behind it works, is stuck, or is gone."""

from __future__ import annotations

import enum
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...engines.server import Server
from ...engines.spec import EngineSpec
from ...errors import NotAtWork
from ...target_site.vllm_regress_target.sim.pacing import STUCK, STUCK_TOKENS
from ...util.deadline import Deadline
from .requests import DRAIN_S, WAIT_S, Stream, ask, describe_end, paced, wait_for_end

HEALTHY = "200"
HEALTH, TOKEN, AFTER = "/health", "one token", "/health, again"
_PATHS = {TOKEN: "/v1/completions", AFTER: HEALTH}
PROBES = (HEALTH, "/ping", "/metrics", TOKEN, AFTER)
"""What is asked in each state, in this order: three addresses, a request for one token, and /health
once more."""
END_S = 5.0
"""Seconds that a server gets to end once /health has failed."""
_PAUSE_S = 0.1
_BEGIN_S = 30.0
_LONG = 400
"""Tokens of a stream that outlasts all questions."""


class ServerState(enum.StrEnum):
    """A state of a server."""

    ALIVE = "alive"
    ASLEEP = "asleep"
    CORE_STOPPED = "core stopped"
    SCHEDULER_STUCK = "scheduler stuck"
    CORE_DEAD = "core dead"
    WORKER_DEAD = "worker dead"
    DRAINING = "draining"


FAILED = frozenset(
    {
        ServerState.CORE_STOPPED,
        ServerState.SCHEDULER_STUCK,
        ServerState.CORE_DEAD,
        ServerState.WORKER_DEAD,
    }
)
"""States in which no request can be answered."""


@dataclass(frozen=True)
class HealthRow:
    """Answers of a server in a state, by probe. ``server``: whether it runs afterwards, or how it
    ended; while draining also how its stream did.

    ``noticed_s``: seconds until /health said something else than 200. ``absent``: why the release
    has no such state; then nothing else is known.
    """

    answers: Mapping[str, str] = field(default_factory=dict)
    server: str = ""
    noticed_s: float | None = None
    absent: str = ""

    @property
    def summary(self) -> str:
        """The answers of /health and to the request for one token; ``but`` marks a contradiction."""
        words = ", but " if self.contradiction else ", "
        return f"{self.answers[HEALTH]}{words}{self.answers[TOKEN]}"

    @property
    def contradiction(self) -> bool:
        """Whether /health and the request for one token disagree: healthy but no token, or a token
        but not healthy."""
        return not self.absent and (self.answers[HEALTH] == HEALTHY) != (
            self.answers[TOKEN] == HEALTHY
        )


def spec_of(state: str) -> EngineSpec:
    """Return the engine in which the state can be reached."""
    if state == ServerState.ASLEEP:
        return paced(extra={"enable_sleep_mode": True}, env={"VLLM_SERVER_DEV_MODE": "1"})
    if state == ServerState.WORKER_DEAD:
        return paced(tensor_parallel_size=2)
    return paced(extra={"shutdown_timeout": DRAIN_S}) if state == ServerState.DRAINING else paced()


def observe(server: Server, state: str, wait_s: float = WAIT_S) -> HealthRow:
    """Bring the server into the state and return what it answers within ``wait_s``.

    Raises ``NotAtWork`` if the state is not reached.
    """
    stream = _ENTER[state](server)
    watch = state in FAILED or state == ServerState.DRAINING
    answers, noticed_s = _answers(server, wait_s, watch=watch)
    if state in FAILED and answers[AFTER] != HEALTHY:
        wait_for_end(server.child, END_S)
    end = f", stream {stream.outcome(0)}" if isinstance(stream, Stream) else ""
    return HealthRow(answers, describe_end(server) + end, noticed_s)


def _answers(server: Server, wait_s: float, *, watch: bool) -> tuple[dict[str, str], float | None]:
    """Return the answer of each probe.

    With ``watch``, that of /health is the first that is not 200, for which it is asked for
    ``wait_s``.
    """
    begun, deadline = time.monotonic(), Deadline.after("request", wait_s)
    health = ask(server, HEALTH, wait_s=wait_s)
    while watch and health == HEALTHY and not deadline.passed:
        server.child.pause(_PAUSE_S)
        health = ask(server, HEALTH, wait_s=wait_s)
    noticed_s = round(time.monotonic() - begun, 1) if watch and health != HEALTHY else None
    asked = {"/ping": {}, "/metrics": {}, TOKEN: {"tokens": 1}, AFTER: {}}
    answers = {
        name: ask(server, _PATHS.get(name, name), wait_s=wait_s, **fields)
        for name, fields in asked.items()
    }
    return {HEALTH: health, **answers}, noticed_s


def _stick(server: Server) -> None:
    """Send the request that makes the scheduler stuck, and wait until it is."""
    Stream(server, STUCK_TOKENS)
    deadline = Deadline.after("request", _BEGIN_S)
    while STUCK not in server.log():
        if deadline.passed:
            raise NotAtWork(
                f"{ServerState.SCHEDULER_STUCK}: the scheduler did not get the request within {_BEGIN_S:g} s"
            )
        server.child.pause(_PAUSE_S)


def _drain(server: Server) -> Stream:
    stream = Stream(server, _LONG)
    if not stream.wait_for_first(_BEGIN_S):
        raise NotAtWork(f"{ServerState.DRAINING}: the stream did not begin within {_BEGIN_S:g} s")
    server.signal(signal.SIGTERM)
    return stream


_ENTER: Mapping[str, Callable[[Server], object]] = {
    ServerState.ALIVE: lambda server: None,
    ServerState.ASLEEP: lambda server: server.sleep(),
    ServerState.CORE_STOPPED: lambda server: server.signal(signal.SIGSTOP, "core"),
    ServerState.SCHEDULER_STUCK: _stick,
    ServerState.CORE_DEAD: lambda server: server.signal(signal.SIGKILL, "core"),
    ServerState.WORKER_DEAD: lambda server: server.signal(signal.SIGKILL, "worker"),
    ServerState.DRAINING: _drain,
}
"""How a state is entered. What is returned may be the stream that runs in it."""
