"""Memory, processes, log and session budget are limited, and the error names the limit."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.engines.processes import process_tree
from pytest_vllm_regress.engines.processes.agent import Agent
from pytest_vllm_regress.engines.processes.child import Child
from pytest_vllm_regress.errors import LimitExceeded
from pytest_vllm_regress.target_site.vllm_regress_target import limits
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.rundir import RunDir
from pytest_vllm_regress.util.sizes import MIB

PROBE = Path(__file__).with_name("probe.py")


@pytest.fixture
def agent(run_dir: RunDir) -> Iterator[Agent]:
    session = 3600.0
    given = {
        "memory": 200.0 * MIB,
        "processes": 40.0,
        "log": 1.0 * MIB,
        "until": time.monotonic() + session,
        "session": session,
    }
    started = Agent(Path(sys.executable), run_dir, limits=given)
    started.start(Deadline.after("import", 60))
    yield started
    started.stop()


@pytest.fixture(params=["fork", "spawn"])
def child(agent: Agent, request: pytest.FixtureRequest) -> Iterator[Child]:
    started = agent.start_child("probe", Deadline.after("start", 60), start_method=request.param)
    yield started
    started.kill()


def ask(child: Child, function: str, **arguments: Any) -> Any:
    return child.request(
        "call", Deadline.after("probe", 60), file=str(PROBE), function=function, arguments=arguments
    )


def nothing_left(agent: Agent) -> bool:
    return not process_tree.wait_until_gone(
        [p for p in process_tree.with_tag(agent.run.tag) if p.pid not in agent.pids], 60
    )


def test_memory(agent: Agent, child: Child) -> None:
    words = r"probe 1 was ended: it uses \d+ MiB of memory, and 200 MiB is the limit \(--vllm-limit memory\): \d+ python"
    with pytest.raises(LimitExceeded, match=words):
        ask(child, "allocate", mib=400, share=1, then_sleep=True)
    assert nothing_left(agent)


def test_memory_that_processes_share_counts_once(child: Child) -> None:
    assert ask(child, "allocate", mib=100, share=4) == 100
    look_twice = Deadline.after("probe", 1.5)
    while not look_twice.passed:
        child.pause(look_twice.left_s)
    assert child.alive


def test_a_fork_bomb(agent: Agent, child: Child) -> None:
    with pytest.raises(
        LimitExceeded, match=r"it has \d+ processes, and 40 is the limit \(--vllm-limit processes\)"
    ):
        ask(child, "fork_bomb", at_most=400)
    assert nothing_left(agent)


def test_a_long_log_keeps_head_and_tail(child: Child) -> None:
    assert ask(child, "flood", first="the first line", line="x" * 127, mib=20) == 20
    small = Deadline.after("probe", 60)
    while "bytes left out" not in child.log.read_text() and not small.passed:
        child.pause(0.05)
    assert child.log.stat().st_size <= MIB
    ask(child, "say", text="after that")
    text = child.log.read_text()
    assert text.startswith("the first line")
    assert "bytes left out: a log is limited to 1 MiB (--vllm-limit log)" in text
    assert text.splitlines()[-2:] == ["the last line", "after that"]


def test_the_session_budget_ends_what_runs(run_dir: RunDir) -> None:
    agent = Agent(Path(sys.executable), run_dir, limits={"until": time.monotonic(), "session": 5})
    agent.start(Deadline.after("import", 60))
    try:
        child = agent.start_child("probe", Deadline.after("start", 60))
        with pytest.raises(
            LimitExceeded,
            match=r"the session's budget of 5 s is used up \(--vllm-limit session\)",
        ):
            ask(child, "sleep")
        assert nothing_left(agent)
    finally:
        agent.stop()


# The rules alone.


def test_nothing_is_limited_by_default() -> None:
    assert limits.breach([1, 2, 3], {}) is None
    assert limits.breach([], {"processes": 0}) is None


def test_processes_that_have_gone_use_nothing() -> None:
    assert limits.breach([2**22 + 5], {"memory": 1.0, "processes": 1}) is None


@pytest.mark.parametrize("size", [0, 1, 4096, 100_000, 10**6])
def test_trim(tmp_path: Path, size: int) -> None:
    log = tmp_path / "log"
    content = bytes(32 + n % 90 for n in range(size))
    log.write_bytes(content)
    limits.trim(str(log), 50_000)
    kept = log.read_bytes()
    assert len(kept) <= 50_000
    if size <= 50_000:
        assert kept == content
    else:
        assert kept.startswith(content[:1000])
        assert kept.endswith(content[-1000:])
    limits.trim(str(tmp_path / "none"), 1)
