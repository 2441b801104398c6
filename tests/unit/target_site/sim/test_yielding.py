"""Processes of the simulated device yield at the beginning of a wait and sleep later."""

from __future__ import annotations

import os
import time

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import sim


class Yields:
    count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def yields() -> Yields:
    return Yields()


def spin(wait: sim.YieldThenSleep, seconds: float) -> int:
    calls, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        wait()
        calls += 1
    return calls


def test_a_long_wait_sleeps(yields: Yields) -> None:
    began = time.thread_time()
    assert (
        spin(sim.YieldThenSleep(yields), 0.5) < 20_000
    )  # most in the first 2 ms; without sleeping it would be half a million
    assert time.thread_time() - began < 0.25


def test_a_new_wait_begins_by_yielding(yields: Yields) -> None:
    wait = sim.YieldThenSleep(yields)
    spin(wait, 0.1)
    before = yields.count
    until = time.thread_time() + 0.005
    while time.thread_time() < until:
        pass
    wait()
    assert yields.count == before + 1


def test_only_the_simulated_device_replaces_sched_yield(monkeypatch: pytest.MonkeyPatch) -> None:
    original = object()
    monkeypatch.setattr(os, "sched_yield", original)
    monkeypatch.setenv(sim.DEVICE_VARIABLE, "cpu")
    assert sim.register() is None
    assert os.sched_yield is original
    monkeypatch.setenv(sim.DEVICE_VARIABLE, "sim")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    assert sim.register() == sim.PLATFORM
    assert isinstance(os.sched_yield, sim.YieldThenSleep)
