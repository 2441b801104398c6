"""Hangs are detected by their stillness, and no working tree is mistaken for one: a table of
simulated, but real process trees."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.engines.processes.agent import Agent
from pytest_vllm_regress.engines.processes.child import Loan
from pytest_vllm_regress.engines.processes.early_exit import (
    DocumentedHang,
    EarlyExitPolicy,
    HangDetector,
    WatchedTree,
)
from pytest_vllm_regress.engines.processes.stillness import SNAPSHOT_INTERVAL_S
from pytest_vllm_regress.errors import DeadlineExceeded
from pytest_vllm_regress.util.deadline import Deadline

pytestmark = pytest.mark.slow

PROCESS_TREES = Path(__file__).with_name("process_trees") / "probe.py"
SETTLE_S, PATIENT_S = 3.0, 120.0
HANG = DocumentedHang("the documented text", ("probe",), SETTLE_S)

HANGS = (
    "wait_for_ever",
    "wait_for_a_child_that_waits",
    "deadlock",
    "poll_for_ever",
    "restart_for_ever",
)
WORK = (
    "restart_until_it_works",
    "spin",
    "work_a_little",
    "sleep_and_answer",
    "swap_lines",
    "log_now_and_then",
    "stopped_and_continued",
    "blocked_by_one_that_works",
    "blocked_by_one_that_sleeps",
    "slow_disk",
    "wait_uninterruptibly",
    "network_time_outs",
    "connect_again_and_again",
    "slow_download",
    "thousands_of_short_processes",
)


def ask(
    agent: Agent, function: str, hang: DocumentedHang | None, seconds: float = PATIENT_S
) -> Any:
    child = agent.start_child("probe", Deadline.after("start", 60))
    call = {"file": str(PROCESS_TREES), "function": function, "arguments": {}}
    try:
        with child.lend(Loan(EarlyExitPolicy(hang))):
            return child.request("call", Deadline.after("probe", seconds), **call)
    finally:
        child.kill()


@pytest.mark.parametrize("function", HANGS)
def test_a_documented_hang_ends_early(agent: Agent, function: str) -> None:
    with pytest.raises(DeadlineExceeded) as caught:
        ask(agent, function, HANG)
    words = str(caught.value)
    assert "hangs: " in words and f"the wait ended before its deadline of {PATIENT_S:g} s" in words
    assert ("the same step again for" if "restart" in function else "still for") in words
    assert "after 'the documented text" in words and "== dossier:" in words
    assert caught.value.phase == "probe" and caught.value.kind == "hang"


@pytest.mark.parametrize("function", WORK)
def test_work_never_counts_as_a_hang(agent: Agent, function: str) -> None:
    assert ask(agent, function, HANG)


@pytest.mark.parametrize(
    ("function", "hang"),
    [
        ("say_nothing_and_wait", HANG),
        ("wait_for_ever", None),
        ("wait_for_ever", DocumentedHang("another text", ("probe",), SETTLE_S)),
        ("wait_for_ever", DocumentedHang("the documented text", ("request",), SETTLE_S)),
    ],
)
def test_without_its_text_or_in_another_phase_no_hang_ends_early(
    agent: Agent, function: str, hang: DocumentedHang | None
) -> None:
    with pytest.raises(DeadlineExceeded, match=r"missed its deadline: no answer within 6 s"):
        ask(agent, function, hang, seconds=2 * SETTLE_S)


def test_text_of_an_earlier_request_does_not_count(agent: Agent) -> None:
    child = agent.start_child("probe", Deadline.after("start", 60))
    arguments = {"file": str(PROCESS_TREES), "arguments": {}}
    policy = Loan(EarlyExitPolicy(HANG))
    with child.lend(policy):
        child.request("call", Deadline.after("probe", 20), function="say", **arguments)
    with child.lend(policy), pytest.raises(DeadlineExceeded, match="missed its deadline"):
        child.request(
            "call",
            Deadline.after("probe", 2 * SETTLE_S),
            function="say_nothing_and_wait",
            **arguments,
        )


def test_sampling_costs_less_than_a_hundredth_of_a_core(agent: Agent) -> None:
    child = agent.start_child("probe", Deadline.after("start", 60))
    assert child.alive and child.pid is not None
    now = [0.0]
    watched = WatchedTree(child.nanny_pid, child.pid, child.log, None)
    watch = HangDetector(DocumentedHang("something else", ("probe",)), watched, lambda: now[0])
    request = {"op": "call", "file": str(PROCESS_TREES), "function": "be_of_eight", "arguments": {}}
    child._channel.post(request, Deadline.after("probe", 60))
    until = time.monotonic() + 60
    while "something else" not in child.log.read_text() and time.monotonic() < until:
        time.sleep(0.05)
    costs = []
    for _ in range(5):  # the least of them: other processes on the same core make each one dearer
        spent = time.process_time()
        for _ in range(40):
            watch.check()
            now[0] += SNAPSHOT_INTERVAL_S
        costs.append((time.process_time() - spent) / (40 * SNAPSHOT_INTERVAL_S))
    assert len(child.processes()) == 8
    child.kill()
    assert min(costs) < 0.01
