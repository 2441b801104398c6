"""Deadlines on a clock that the tests control."""

from __future__ import annotations

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_vllm_regress.defaults import PHASES
from pytest_vllm_regress.engines.settings import Timeouts
from pytest_vllm_regress.util.deadline import Deadline, RunningTime, running_time, wait_readable

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


def test_what_is_readable_counts_after_the_deadline() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert not wait_readable(Deadline.after("request", 0), left)
        right.send(b"x")
        assert wait_readable(Deadline.after("request", 0), left)


@pytest.mark.parametrize(
    ("gap_s", "cpu_s", "counted_s"),
    [
        (1.0, 0.0, 1.0),  # a wait
        (1.5, 0.0, 1.5),  # a wait on a busy machine
        (30.0, 0.0, 2.0),  # this process was stopped
        (30.0, 30.0, 30.0),  # it worked
        (30.0, 10.0, 10.0),  # it worked, and was stopped
        (30.0, 90.0, 30.0),  # it worked in several threads
    ],
)
def test_time_in_which_the_process_does_not_run_is_not_counted(
    gap_s: float, cpu_s: float, counted_s: float
) -> None:
    now, cpu = [100.0], [5.0]
    clock = RunningTime(lambda: now[0], lambda: cpu[0])
    before = clock()
    now[0] += gap_s
    cpu[0] += cpu_s
    assert clock() - before == pytest.approx(counted_s)
    now[0] += 1
    assert clock() - before == pytest.approx(counted_s + 1)


def test_a_deadline_says_how_long_the_process_did_not_run() -> None:
    stopped = [0.0]
    deadline = Deadline.after("request", 5, lambda: running_time() - stopped[0])
    assert deadline.not_run_s == pytest.approx(0, abs=0.5)
    stopped[0] = 30.0
    assert deadline.not_run_s == pytest.approx(30, abs=0.5)
    assert not deadline.passed


def test_threads_do_not_count_the_same_gap_twice() -> None:
    now = [100.0]
    clock = RunningTime(lambda: now[0], lambda: 0.0)
    now[0] += 30
    readers = [threading.Thread(target=clock) for _ in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert clock() == 102
