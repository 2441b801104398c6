"""Growth of an engine's memory over many requests: readings of each process, and the slope with its
confidence interval.

The slope is that of Theil and Sen: the median of the slopes between all pairs of readings. Unlike
least squares it is not misled by a single step, such as a buffer that is allocated once. Its
interval is Sen's (1968, doi:10.1080/01621459.1968.10480934), from the variance of Kendall's
statistic.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import httpx
import psutil

from ...engines.running import Running
from ...engines.server import Server
from ...engines.spec import EngineSpec
from ...errors import NotAtWork, UsageError
from .requests import completion

CONFIDENCE = 0.95
MIN_READINGS = 8
"""Fewer readings give no interval worth the name."""
LEAST = 64.0
"""Slopes of fewer bytes per request are not reported: this is about one object kept for each
request."""


@dataclass(frozen=True)
class Reading:
    """Memory of a process after ``requests``, in bytes.

    ``rss``: resident; ``uss``: what it shares with no other process.
    """

    requests: int
    rss: int
    uss: int


@dataclass(frozen=True)
class Slope:
    """Bytes per request, with the interval that holds the true slope with 95 % confidence."""

    bytes_per_request: float
    low: float
    high: float

    @property
    def grows(self) -> bool:
        """Whether the memory grows: the whole interval is above zero."""
        return self.low > 0

    def __str__(self) -> str:
        return f"{self.bytes_per_request:.0f} bytes per request ({self.low:.0f} to {self.high:.0f})"


@dataclass(frozen=True)
class Growth:
    """Growth of one process: the slopes of both measures, and the readings behind them."""

    process: str
    rss: Slope
    uss: Slope
    readings: tuple[Reading, ...]


Read = Callable[[int], tuple[int, int]]
"""Returns RSS and USS of the process with this pid, in bytes."""


def measure_growth(
    engine: Running,
    send: Callable[[int], object],
    *,
    requests: int = 2000,
    readings: int = 20,
    warm_up: int = 200,
    read: Read | None = None,
) -> Mapping[str, Growth]:
    """Return the growth of the front process and of each core and worker, by role and number:
    ``server``, ``core``, ``worker``, ``worker 2``.

    ``send(number)`` makes one request and waits for its answer. The first ``warm_up`` requests do
    not count, because caches and pools fill. Raises
    ``UsageError`` for fewer than ``MIN_READINGS`` readings or requests, and ``NotAtWork`` if a
    process ends meanwhile.
    """
    if not MIN_READINGS <= readings <= requests:
        raise UsageError(
            f"measure_growth: readings={readings} is not between {MIN_READINGS} and requests={requests}"
        )
    for number in range(warm_up):
        send(number)
    names = _names(engine)
    memory: dict[int, list[Reading]] = {pid: [] for pid in names}
    marks = {round(requests * step / (readings - 1)) for step in range(readings)}
    for number in range(requests + 1):
        if number in marks:
            for pid in names:
                memory[pid].append(
                    Reading(number, *_read_memory(pid, names[pid], read or resident_memory))
                )
        if number < requests:
            send(warm_up + number)
    return {name: growth_of(name, memory[pid]) for pid, name in names.items()}


def growth_of(process: str, readings: Sequence[Reading]) -> Growth:
    """Return the growth that the readings of a process show."""
    rss, uss = (
        slope([(reading.requests, getattr(reading, measure)) for reading in readings])
        for measure in ("rss", "uss")
    )
    return Growth(process, rss, uss, tuple(readings))


def slope(points: Sequence[tuple[int, int]]) -> Slope:
    """Return the slope of Theil and Sen through points of at least ``MIN_READINGS`` different
    requests, with Sen's interval."""
    slopes = sorted(
        (second[1] - first[1]) / (second[0] - first[0])
        for first, second in itertools.combinations(points, 2)
    )
    count = len(points)
    z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    spread = z * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = max(0, math.floor((len(slopes) - spread) / 2))
    high = min(len(slopes) - 1, math.ceil((len(slopes) + spread) / 2))
    return Slope(statistics.median(slopes), slopes[low], slopes[high])


def resident_memory(pid: int) -> tuple[int, int]:
    """Return RSS and USS of a process in bytes, from /proc/PID/smaps_rollup."""
    memory = psutil.Process(pid).memory_full_info()
    return memory.rss, memory.uss


def _read_memory(pid: int, name: str, read: Read) -> tuple[int, int]:
    try:
        return read(pid)
    except psutil.Error as error:
        raise NotAtWork(
            f"measure_growth: the process {name} ({pid}) cannot be read any more: {error}"
        ) from None


def _names(engine: Running) -> dict[int, str]:
    """Return a name for each living process but helpers, by its pid."""
    names: dict[int, str] = {}
    for info in engine.processes():
        if info.alive and info.role != "helper":
            number = sum(name.split()[0] == info.role for name in names.values()) + 1
            names[info.pid] = info.role if number == 1 else f"{info.role} {number}"
    return names


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


@dataclass(frozen=True)
class MemoryRun:
    """Slopes of one run, by process: of the memory that the process shares with no other one."""

    slopes: Mapping[str, Slope]

    @property
    def growing(self) -> frozenset[str]:
        """The processes whose whole interval is at least ``LEAST``."""
        return frozenset(process for process, slope in self.slopes.items() if slope.low >= LEAST)


@dataclass(frozen=True)
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

Raises ``NotAtWork`` if the answer is not the one that this kind of request expects.
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
    send = functools.partial(KINDS[kind], server)

    def run(begin: int, warm_up: int) -> MemoryRun:
        growths = measure_growth(
            server,
            lambda number: send(begin + number),
            requests=requests,
            readings=READINGS,
            warm_up=warm_up,
        )
        return MemoryRun({process: growth.uss for process, growth in growths.items()})

    # It keeps its connection, unlike the server's own client.
    with server.route_through(httpx.HTTPTransport()):
        first = run(0, warm_up)
        return MemoryRow((first, run(warm_up + requests, 0)) if first.growing else (first,))


def _complete(server: Server, number: int) -> None:
    body = {**completion(server, TOKENS), "prompt": f"Hello {number}"}
    with _posted(server, "/v1/completions", body) as response:
        response.read()


def _stream_chat(server: Server, number: int) -> None:
    with _chat(server, number, max_tokens=TOKENS, stream=True) as response:
        if "data: [DONE]" not in response.iter_lines():
            raise NotAtWork(f"stream {number} ended without [DONE]")


def _constrain(server: Server, number: int) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "thing", "schema": _SCHEMA}}
    with _chat(server, number, max_tokens=TOKENS, response_format=schema) as response:
        text = json.loads(response.read())["choices"][0]["message"]["content"] or ""
    if not text.lstrip().startswith("{"):
        raise NotAtWork(f"the answer to request {number} does not follow the schema: {text[:80]!r}")


def _abort_stream(server: Server, number: int) -> None:
    with _chat(server, number, max_tokens=LONG, ignore_eos=True, stream=True) as response:
        if not any(line.startswith("data: {") for line in response.iter_lines()):
            raise NotAtWork(f"stream {number} ended before its first chunk")


def _chat(server: Server, number: int, **fields: Any) -> AbstractContextManager[httpx.Response]:
    messages = [{"role": "user", "content": f"Hello {number}"}]
    body = {"model": server.model, "messages": messages, **fields}
    return _posted(server, "/v1/chat/completions", body)


@contextlib.contextmanager
def _posted(server: Server, path: str, body: dict[str, Any]) -> Iterator[httpx.Response]:
    with server.client.stream("POST", path, json=body, timeout=_TIMEOUT_S) as response:
        if response.is_error:
            text = response.read().decode(errors="replace")
            raise NotAtWork(f"HTTP {response.status_code}: {text[:200]}")
        yield response


KINDS: Mapping[str, Send] = {
    "completion": _complete,
    "streamed chat": _stream_chat,
    "structured output": _constrain,
    "aborted stream": _abort_stream,
}
"""Kinds of requests, by the name of their row."""
