"""How processes of the simulated device wait for one another: briefly by yielding, and asleep when it takes long."""

from __future__ import annotations

import os
import time

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import sim


class Yields:
    number = 0

    def __call__(self) -> None:
        self.number += 1


@pytest.fixture
def yields() -> Yields:
    return Yields()


def spin(rest: sim.Rest, seconds: float) -> int:
    calls, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        rest()
        calls += 1
    return calls


def test_who_waits_long_sleeps(yields: Yields) -> None:
    began = time.thread_time()
    assert spin(sim.Rest(yields), 0.5) < 20_000  # most in the first 2 ms; yielding alone makes it half a million
    assert time.thread_time() - began < 0.25


def test_a_new_wait_begins_by_yielding(yields: Yields) -> None:
    rest = sim.Rest(yields)
    spin(rest, 0.1)
    before = yields.number
    until = time.thread_time() + 0.005
    while time.thread_time() < until:
        pass
    rest()
    assert yields.number == before + 1


def test_it_stands_for_the_system_call_on_the_simulated_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = object()
    monkeypatch.setattr(os, "sched_yield", plain)
    monkeypatch.setenv(sim.DEVICE_VARIABLE, "cpu")
    assert sim.register() is None
    assert os.sched_yield is plain
    monkeypatch.setenv(sim.DEVICE_VARIABLE, "sim")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    assert sim.register() == sim.PLATFORM
    assert isinstance(os.sched_yield, sim.Rest)
