"""Growth of memory: a leak is found in noise, and noise is not taken for a leak."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from pytest_vllm_regress.engines.running import ProcessInfo
from pytest_vllm_regress.errors import NotAtWork, UsageError
from pytest_vllm_regress.surveys.states.growth import Read, measure_growth, slope

MIB = 1024 * 1024
SERVER, CORE = 10, 11
PROCESSES = [
    ProcessInfo(SERVER, "server", "VLLM::APIServer", ""),
    ProcessInfo(CORE, "core", "VLLM::EngineCore_DP0", ""),
    ProcessInfo(12, "helper", "python", ""),
    ProcessInfo(13, "core", "VLLM::EngineCore_DP1", ""),
    ProcessInfo(14, "worker", "python", "", alive=False),
]
ENGINE: Any = SimpleNamespace(processes=lambda: PROCESSES)


def curve(of: Callable[[int], float], noise: float = 0.0, seed: int = 0) -> list[tuple[int, int]]:
    source = random.Random(seed)
    return [(n, int(500 * MIB + of(n) + source.gauss(0, noise))) for n in range(0, 2001, 100)]


@pytest.mark.parametrize("seed", range(20))
def test_a_leak_of_two_kilobytes_is_found_in_noise(seed: int) -> None:
    found = slope(curve(lambda n: 2048 * n, noise=100_000, seed=seed))
    assert found.grows
    assert found.low - 200 < 2048 < found.high + 200


def test_noise_is_rarely_taken_for_a_leak() -> None:
    growing = sum(slope(curve(lambda n: 0, noise=MIB, seed=seed)).grows for seed in range(200))
    assert growing <= 12  # a one-sided error of 2.5 % is expected: 5 of 200


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (lambda n: 0, "constant"),
        (lambda n: 30 * MIB * (n > 1000), "one step"),
        (lambda n: -1000 * n, "shrinking"),
        (lambda n: 8 * MIB * (n == 500), "a peak"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_grow_steadily_is_no_leak(of: Callable[[int], float], name: str) -> None:
    assert not slope(curve(of)).grows, name


def test_an_exact_leak_has_an_exact_slope() -> None:
    found = slope([(n, 64 * n) for n in range(10)])
    assert (found.bytes_per_request, found.low, found.high) == (64, 64, 64)
    assert str(found) == "64 bytes per request (64 to 64)"


class Engine:
    """Counts requests; the memory of its core grows with them."""

    def __init__(self) -> None:
        self.requests: list[int] = []

    def send(self, number: int) -> None:
        self.requests.append(number)

    def read(self, pid: int) -> tuple[int, int]:
        leaked = 4096 * len(self.requests) if pid == CORE else 0
        return 200 * MIB + leaked, 100 * MIB + leaked


def test_every_process_is_measured_after_the_warm_up() -> None:
    engine = Engine()
    growth = measure_growth(
        ENGINE, engine.send, requests=100, readings=11, warm_up=20, read=engine.read
    )
    assert engine.requests == [*range(120)]
    assert [*growth] == ["server", "core", "core 2"]
    assert [reading.requests for reading in growth["core"].readings] == [*range(0, 101, 10)]
    assert growth["core"].uss.bytes_per_request == growth["core"].rss.bytes_per_request == 4096
    assert (
        growth["core"].uss.grows
        and not growth["server"].uss.grows
        and not growth["core 2"].rss.grows
    )


@pytest.mark.parametrize(("requests", "readings"), [(100, 7), (5, 8), (100, 101)])
def test_too_few_readings_are_refused(requests: int, readings: int) -> None:
    with pytest.raises(UsageError, match="readings"):
        measure_growth(ENGINE, lambda number: None, requests=requests, readings=readings, warm_up=0)


def test_a_process_that_ends_meanwhile_is_an_error_that_names_it() -> None:
    def read(pid: int) -> tuple[int, int]:
        raise psutil.NoSuchProcess(pid)

    gone: Read = read
    with pytest.raises(NotAtWork, match=r"server \(10\)"):
        measure_growth(ENGINE, lambda number: None, requests=10, readings=10, warm_up=0, read=gone)
