"""Children that misbehave while they answer or stop, without vLLM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.engines.processes.agent import Agent
from pytest_vllm_regress.engines.processes.child import Child
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.rundir import RunDir
from tests.faults.cells import Cell, cell

pytestmark = pytest.mark.faults
PROBE = Path(__file__).with_name("misbehaviour.py")
DEADLINE_S = 1.5
SLOW_S = 30.0
LIMITS = {"memory": 300.0 * 2**20, "processes": 60.0, "log": 8.0 * 2**20}
HANG, CRASH, LIMIT, GARBAGE = "DeadlineExceeded", "ChildDied", "LimitExceeded", "ProtocolError"
# Error of the request, error of the stop, and the deadline in seconds. Faults that end by
# themselves have plenty of time.
FAULTS: dict[str, tuple[str, str, float]] = {
    "hang": (HANG, HANG, DEADLINE_S),
    "hang_in_native_code": (HANG, HANG, DEADLINE_S),
    "hang_deaf_to_term": (HANG, HANG, DEADLINE_S),
    "exit_in_silence": (CRASH, CRASH, SLOW_S),
    "segfault": (CRASH, CRASH, SLOW_S),
    "raise_error": (
        "RemoteError",
        "no error",
        SLOW_S,
    ),  # Python prints exceptions of exit handlers and continues
    "garbage": (GARBAGE, GARBAGE, SLOW_S),
    "truncated": (f"{GARBAGE} or {CRASH}", f"{GARBAGE} or {CRASH}", SLOW_S),
    "oversized": (GARBAGE, GARBAGE, SLOW_S),
    "flood_stdout": ("no error", "no error", SLOW_S),
    "flood_stderr": ("no error", "no error", SLOW_S),
    "zombies": (HANG, HANG, DEADLINE_S),
    "daemon": ("no error", "no error", SLOW_S),
    "eat_memory": (LIMIT, LIMIT, SLOW_S),
    "over_its_rlimit": ("RemoteError", "no error", SLOW_S),
    "fork_bomb": (LIMIT, LIMIT, SLOW_S),
    "many_threads": (HANG, HANG, DEADLINE_S),
    "all_descriptors": (HANG, HANG, DEADLINE_S),
    "shared_memory": (HANG, HANG, DEADLINE_S),
    "named_semaphore": (HANG, HANG, DEADLINE_S),
}
SAMPLE = ("truncated", "oversized", "flood_stdout", "many_threads", "zombies", "all_descriptors")


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    run = RunDir.create()
    started = Agent(Path(sys.executable), run, limits=LIMITS)
    started.start(Deadline.after("import", 60))
    yield started
    started.stop()
    run.remove()


def ask(child: Child, function: str, seconds: float, **arguments: Any) -> Any:
    return child.request(
        "call",
        Deadline.after("request", seconds),
        file=str(PROBE),
        function=function,
        arguments=arguments,
    )


def run_child(agent: Agent) -> None:
    child = agent.start_child("probe", Deadline.after("start", 60))
    assert ask(child, "fine", 20) == 1
    child.stop(Deadline.after("stop", 60))


CELLS = [
    pytest.param(
        fault,
        phase,
        method,
        marks=[pytest.mark.sample]
        if fault in SAMPLE and (phase, method) == ("request", "fork")
        else [],
    )
    for fault in FAULTS
    for phase, method in (("request", "fork"), ("stop", "fork"), ("request", "spawn"))
]


@pytest.mark.parametrize(("fault", "phase", "method"), CELLS)
def test_a_misbehaving_child_ends_in_time_and_leaves_nothing(
    agent: Agent, cells: list[Cell], fault: str, phase: str, method: str
) -> None:
    assert agent.pid is not None
    spared = frozenset({agent.pid})
    in_request, in_stop, seconds = FAULTS[fault]
    where = "child" if method == "fork" else "child, spawned"
    with cell(
        cells, agent.run, where, fault.replace("_", " "), phase, spared=lambda: spared
    ) as recorder:
        child = agent.start_child("probe", Deadline.after("start", 60), start_method=method)
        if phase == "request":
            recorder.call(lambda: ask(child, fault, seconds), seconds)
            outcome = recorder.outcome
            recorder.call(lambda: child.stop(Deadline.after("stop", SLOW_S)), SLOW_S)
            recorder.outcome = outcome
        else:
            ask(child, "later", 20, name=fault)
            recorder.call(lambda: child.stop(Deadline.after("stop", seconds)), seconds)
        assert recorder.outcome.partition(":")[0] in (
            in_request if phase == "request" else in_stop
        ).split(" or ")
        assert child.log.stat().st_size <= LIMITS["log"]
        recorder.run_next(lambda: run_child(agent))
