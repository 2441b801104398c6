"""How the memory of a server's processes grows with each kind of request."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from ...engines.server import Server
from ...engines.spec import EngineSpec
from ...errors import NotAtWork
from .growth import LEAST, Growth, Slope, measure_growth
from .requests import completion

REQUESTS, READINGS, WARM_UP = 1000, 20, 300
TOKENS = 4
LONG = 400
"""Tokens that an aborted stream asks for: more than the server has sent when the client closes the
connection."""
_TIMEOUT_S = 60.0
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
    "required": ["name", "size"],
}


@dataclasses.dataclass(frozen=True)
class MemoryRun:
    """Slopes of one run, by process: of the memory that the process shares with no other one."""

    slopes: Mapping[str, Slope]

    @property
    def growing(self) -> frozenset[str]:
        """The processes whose whole interval is at least ``LEAST``."""
        return frozenset(process for process, slope in self.slopes.items() if slope.low >= LEAST)


@dataclasses.dataclass(frozen=True)
class MemoryRow:
    """Runs with one kind of request, one after the other on the same server. The second is made
    only if a process grew in the first.

    ``absent``: why the release does not answer such requests; then nothing else is known.
    """

    runs: tuple[MemoryRun, ...] = ()
    absent: str = ""

    @property
    def summary(self) -> str:
        """The processes that grow, or ``no``."""
        return f"{', '.join(sorted(self.growing))} grows" if self.growing else "no"

    @property
    def growing(self) -> frozenset[str]:
        """The processes that grew in both runs."""
        return self.runs[0].growing & self.runs[1].growing if len(self.runs) > 1 else frozenset()


Send = Callable[[Server, int], None]
"""Sends the request with this number and returns after its answer.

Raises ``NotAtWork`` if the answer is not what the kind of request gets.
"""


def spec_of(kind: str) -> EngineSpec:
    """Return the engine that answers each kind of request."""
    return EngineSpec.create(generation="V1")


def observe(
    server: Server, kind: str, *, requests: int = REQUESTS, warm_up: int = WARM_UP
) -> MemoryRow:
    """Return how the server's memory grows with this kind of request.

    Raises ``NotAtWork`` if the requests are not answered.
    """
    with server.route_through(
        httpx.HTTPTransport()
    ):  # keeps its connection, unlike the server's own client
        first = _run(server, kind, begin=0, requests=requests, warm_up=warm_up)
        if not first.growing:
            return MemoryRow((first,))
        return MemoryRow(
            (first, _run(server, kind, begin=warm_up + requests, requests=requests, warm_up=0))
        )


def _run(server: Server, kind: str, *, begin: int, requests: int, warm_up: int) -> MemoryRun:
    send = KINDS[kind]
    growths: Mapping[str, Growth] = measure_growth(
        server,
        lambda number: send(server, begin + number),
        requests=requests,
        readings=READINGS,
        warm_up=warm_up,
    )
    return MemoryRun({process: growth.uss for process, growth in growths.items()})


def _complete(server: Server, number: int) -> None:
    body = {**completion(server, TOKENS), "prompt": f"Hello {number}"}
    _require_success(server.client.post("/v1/completions", json=body, timeout=_TIMEOUT_S))


def _stream_chat(server: Server, number: int) -> None:
    with _stream(server, _chat(server, number, max_tokens=TOKENS, stream=True)) as response:
        if "data: [DONE]" not in response.iter_lines():
            raise NotAtWork(f"stream {number} ended without [DONE]")


def _constrain(server: Server, number: int) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "thing", "schema": _SCHEMA}}
    response = server.client.post(
        "/v1/chat/completions",
        json=_chat(server, number, max_tokens=TOKENS, response_format=schema),
        timeout=_TIMEOUT_S,
    )
    _require_success(response)
    text = response.json()["choices"][0]["message"]["content"] or ""
    if not text.lstrip().startswith("{"):
        raise NotAtWork(f"the answer to request {number} does not follow the schema: {text[:80]!r}")


def _abort_stream(server: Server, number: int) -> None:
    with _stream(
        server, _chat(server, number, max_tokens=LONG, ignore_eos=True, stream=True)
    ) as response:
        if not any(line.startswith("data: {") for line in response.iter_lines()):
            raise NotAtWork(f"stream {number} ended before its first chunk")


def _chat(server: Server, number: int, **fields: Any) -> dict[str, Any]:
    return {
        "model": server.model,
        "messages": [{"role": "user", "content": f"Hello {number}"}],
        **fields,
    }


@contextlib.contextmanager
def _stream(server: Server, body: dict[str, Any]) -> Any:
    with server.client.stream(
        "POST", "/v1/chat/completions", json=body, timeout=_TIMEOUT_S
    ) as response:
        if response.is_error:
            response.read()
        _require_success(response)
        yield response


def _require_success(response: httpx.Response) -> None:
    if response.is_error:
        raise NotAtWork(f"HTTP {response.status_code}: {response.text[:200]}")


KINDS: Mapping[str, Send] = {
    "completion": _complete,
    "streamed chat": _stream_chat,
    "structured output": _constrain,
    "aborted stream": _abort_stream,
}
"""Kinds of requests, by the name of their row."""
