"""States and endings of a real server, and that measuring them leaves nothing behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from pytest_vllm_regress.surveys.states.health import HEALTH, TOKEN, HealthRow, ServerState
from pytest_vllm_regress.surveys.states.measure import ReleaseStates, measure_environment
from pytest_vllm_regress.surveys.states.shutdown import ROWS, ShutdownRow
from pytest_vllm_regress.target_site.vllm_regress_target.nanny import mapped_shm
from pytest_vllm_regress.util.deadline import Deadline

pytestmark = [pytest.mark.engine, pytest.mark.slow]
ENVIRONMENT = "vllm-0.33.0"
WANTED = {
    *(ServerState.SCHEDULER_STUCK, ServerState.CORE_DEAD),
    *("SIGTERM, streaming", "SIGKILL of the server, streaming"),
}


def running() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def shared_memory() -> set[str]:
    return {str(path) for path in Path("/dev/shm").rglob("*")}


def left_shared_memory() -> set[str]:
    """Return the files in shared memory that no process has mapped."""
    return shared_memory() - mapped_shm(
        int(entry) for entry in os.listdir("/proc") if entry.isdigit()
    )


def test_states_of_a_release_are_measured_and_leave_nothing_behind(user_caches: None) -> None:
    known = ReleaseStates(
        "0.33.0",
        health={
            state: HealthRow(absent="not asked") for state in ServerState if state not in WANTED
        },
        shutdown={name: ShutdownRow(absent="not asked") for name in ROWS if name not in WANTED},
    )
    processes, segments = running(), shared_memory()
    lines: list[str] = []
    *_, release = measure_environment(ENVIRONMENT, known, ("health", "shutdown"), lines.append)
    assert release.missing(("health", "shutdown")) == [], lines
    stuck, dead = release.health[ServerState.SCHEDULER_STUCK], release.health[ServerState.CORE_DEAD]
    assert (stuck.answers[HEALTH], stuck.answers[TOKEN]) == ("200", "no answer")
    assert (dead.answers[HEALTH], dead.contradiction) == ("503", False)
    term, kill = (
        release.shutdown["SIGTERM, streaming"],
        release.shutdown["SIGKILL of the server, streaming"],
    )
    assert term.stream != "complete" and term.tokens
    assert (kill.exit, kill.stream) == ("killed by SIGKILL", "cut")
    assert "core" in kill.left
    assert running() == processes
    limit = Deadline.after("probe", 60)
    while (
        left_shared_memory() - segments and not limit.passed
    ):  # those of other tests, which remove them
        time.sleep(0.1)
    assert left_shared_memory() - segments == set()
