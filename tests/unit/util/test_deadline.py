"""Deadlines on a clock that the tests control."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_vllm_regress.defaults import PHASES
from pytest_vllm_regress.engines.settings import Timeouts
from pytest_vllm_regress.util.deadline import Deadline, wait_readable

SECONDS = st.floats(0, 1e6, allow_nan=False)


@given(SECONDS, SECONDS)
def test_time_left(allowed: float, spent: float) -> None:
    now = [100.0]
    deadline = Deadline.after("request", allowed, lambda: now[0])
    assert deadline.left_s == pytest.approx(allowed)
    now[0] += spent
    assert deadline.left_s == pytest.approx(max(0.0, allowed - spent), abs=1e-6)
    assert deadline.passed == (deadline.left_s == 0)


def test_a_passed_deadline_stays_passed() -> None:
    now = [0.0]
    deadline = Deadline.after("stop", 5, lambda: now[0])
    assert not deadline.passed
    now[0] = 5.0
    assert deadline.passed
    now[0] = 1e9
    assert deadline.left_s == 0.0


def test_every_phase_has_a_timeout() -> None:
    assert [Timeouts().of(phase) > 0 for phase in PHASES] == [True] * len(PHASES)
    assert Timeouts(request_s=3).of("request") == 3.0


def test_a_source_closed_by_another_thread_is_not_waited_for() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert not wait_readable(Deadline.after("request", 9), left, at_most_s=0.0)
        left.close()
        assert wait_readable(Deadline.after("request", 9), right, left)
