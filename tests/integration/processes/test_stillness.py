"""Hangs are told by their stillness, and nothing that works is taken for one: a table of made-up families, each a real one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.errors import DeadlineExceeded
from pytest_vllm_regress.processes.agent import Agent
from pytest_vllm_regress.processes.early import Early, Family, Watch
from pytest_vllm_regress.processes.stillness import LOOK_S, Awaited
from pytest_vllm_regress.util.deadline import Deadline

FAMILIES = Path(__file__).with_name("families") / "probe.py"
SETTLE_S, PATIENT_S = 3.0, 60.0
HANG = Awaited("the documented text", ("probe",), SETTLE_S)

HANGS = ("wait_for_ever", "wait_for_a_child_that_waits", "deadlock", "poll_for_ever", "restart_for_ever")
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


def ask(agent: Agent, function: str, awaited: Awaited | None, seconds: float = PATIENT_S) -> Any:
    child = agent.fork("probe", Deadline.after("start", 30))
    child.early = Early(awaited)
    try:
        return child.request(
            "call", Deadline.after("probe", seconds), file=str(FAMILIES), function=function, arguments={}
        )
    finally:
        child.kill()


@pytest.mark.parametrize("family", HANGS)
def test_a_hang_whose_text_was_seen_ends_early(agent: Agent, family: str) -> None:
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded) as caught:
        ask(agent, family, HANG)
    assert time.monotonic() - started < PATIENT_S - 10
    words = str(caught.value)
    assert "hangs: " in words and f"the deadline of {PATIENT_S:g} s was not waited for" in words
    assert ("the same step again for" if "restart" in family else "still for") in words
    assert "after 'the documented text" in words and "== dossier:" in words
    assert caught.value.phase == "probe" and caught.value.kind == "hang"


@pytest.mark.parametrize("family", WORK)
def test_what_works_is_never_called_still(agent: Agent, family: str) -> None:
    assert ask(agent, family, HANG)


@pytest.mark.parametrize(
    ("family", "awaited"),
    [
        ("say_nothing_and_wait", HANG),
        ("wait_for_ever", None),
        ("wait_for_ever", Awaited("another text", ("probe",), SETTLE_S)),
        ("wait_for_ever", Awaited("the documented text", ("request",), SETTLE_S)),
    ],
)
def test_without_its_text_or_in_another_phase_no_hang_ends_early(
    agent: Agent, family: str, awaited: Awaited | None
) -> None:
    with pytest.raises(DeadlineExceeded, match=r"missed its deadline: no answer within 6 s"):
        ask(agent, family, awaited, seconds=2 * SETTLE_S)


def test_text_of_an_earlier_request_does_not_count(agent: Agent) -> None:
    child = agent.fork("probe", Deadline.after("start", 30))
    child.early = Early(HANG)
    arguments = {"file": str(FAMILIES), "arguments": {}}
    child.request("call", Deadline.after("probe", 20), function="say", **arguments)
    with pytest.raises(DeadlineExceeded, match="missed its deadline"):
        child.request("call", Deadline.after("probe", 2 * SETTLE_S), function="say_nothing_and_wait", **arguments)


def test_looking_costs_less_than_a_hundredth_of_a_core(agent: Agent) -> None:
    child = agent.fork("probe", Deadline.after("start", 30))
    assert child.alive and child.pid is not None
    now = [0.0]
    family = Family(child._nanny, child.pid, child.log, None)
    watch = Watch(Awaited("something else", ("probe",)), family, lambda: now[0])
    request = {"op": "call", "file": str(FAMILIES), "function": "be_of_eight", "arguments": {}}
    child._channel.send(request, timeout_s=5)
    until = time.monotonic() + 20
    while "something else" not in child.log.read_text() and time.monotonic() < until:
        time.sleep(0.05)
    spent = time.process_time()
    for _ in range(200):
        watch.look()
        now[0] += LOOK_S
    spent = time.process_time() - spent
    assert len(child.processes()) == 8
    child.kill()
    assert spent / now[0] < 0.01
