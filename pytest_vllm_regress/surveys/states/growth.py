"""Growth of an engine's memory over many requests: readings of each process, and the slope with its
confidence interval.

The slope is that of Theil and Sen: the median of the slopes between all pairs of readings. Unlike
least squares it is not misled by a single step, such as a buffer that is allocated once. Its
interval is Sen's (1968, doi:10.1080/01621459.1968.10480934), from the variance of Kendall's
statistic.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import psutil

from ...engines.running import Running
from ...errors import NotAtWork, UsageError

CONFIDENCE = 0.95
MIN_READINGS = 8
"""Fewer readings give no interval worth the name."""
LEAST = 64.0
"""Slopes of fewer bytes per request are not reported: this is about one object kept for each
request."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """Memory of a process after ``requests``, in bytes.

    ``rss``: resident; ``uss``: what it shares with no other process.
    """

    requests: int
    rss: int
    uss: int


@dataclasses.dataclass(frozen=True)
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


@dataclasses.dataclass(frozen=True)
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
    rss = slope([(reading.requests, reading.rss) for reading in readings])
    uss = slope([(reading.requests, reading.uss) for reading in readings])
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
