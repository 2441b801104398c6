"""States and endings of a small server that misbehaves, in real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_vllm_regress.engines.http import listeners
from pytest_vllm_regress.engines.ports import lease_port
from pytest_vllm_regress.engines.processes import process_tree
from pytest_vllm_regress.engines.processes.agent import Agent
from pytest_vllm_regress.engines.running import Launch
from pytest_vllm_regress.engines.server import Server
from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.surveys.states import health, shutdown
from pytest_vllm_regress.surveys.states.health import PROBES, HealthRow, ServerState
from pytest_vllm_regress.surveys.states.requests import CUT, RUNS, SILENT
from pytest_vllm_regress.util.deadline import Deadline

STAND_IN = Path(__file__).with_name("probe.py")
SHORT_S = 3.0
"""The time that a hang is given. It never answers, and everything else does in milliseconds."""
LONG_S = 30.0


def deadline_for(phase: str, seconds: float | None = None) -> Deadline:
    return Deadline.after(phase, seconds or LONG_S)


class StandIns:
    """Starts stand-ins, and proves at the end that nothing of them is left."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._servers: list[tuple[Server, int]] = []

    def __call__(self, *, honest: bool = True, shares_port: bool = False) -> Server:
        child = self._agent.start_child("probe", deadline_for("start"))
        port = lease_port()
        arguments = {"port": port.number, "honest": honest, "shares_port": shares_port}
        request: dict[str, Any] = {
            "file": str(STAND_IN),
            "function": "serve",
            "arguments": arguments,
        }
        child.request("call", deadline_for("probe"), **request)
        scripts: Any = SimpleNamespace(admit=lambda body: None, check=lambda: None)
        server = Server(Launch(child, EngineSpec(), deadline_for, scripts), port, "")
        self._servers.append((server, port.number))
        return server

    def close(self) -> None:
        for server, port in self._servers:
            server.child.kill()
            assert not listeners.on_port(port)
        tagged = process_tree.with_tag(self._agent.run.tag)
        assert not process_tree.wait_until_gone(
            [p for p in tagged if p.pid not in self._agent.pids], LONG_S
        )


@pytest.fixture
def stand_in(agent: Agent) -> Iterator[StandIns]:
    started = StandIns(agent)
    yield started
    started.close()


def answered(row: HealthRow) -> list[str]:
    return [row.answers[probe] for probe in PROBES]


def test_an_honest_server_says_that_its_core_is_dead(stand_in: StandIns) -> None:
    row = health.observe(stand_in(), ServerState.CORE_DEAD, LONG_S)
    assert answered(row) == ["503", "404", "200", "500", "503"]
    assert row.noticed_s is not None and not row.contradiction
    assert row.server == RUNS


def test_a_server_that_lies_hangs_and_does_not_hang_the_command(stand_in: StandIns) -> None:
    row = health.observe(stand_in(honest=False), ServerState.CORE_DEAD, SHORT_S)
    assert answered(row) == ["200", "404", "200", SILENT, "200"]
    assert row.contradiction and row.noticed_s is None


def test_an_alive_server_answers_everything(stand_in: StandIns) -> None:
    assert answered(health.observe(stand_in(), ServerState.ALIVE, LONG_S)) == [
        "200",
        "404",
        "200",
        "200",
        "200",
    ]


def test_a_killed_server_cuts_its_stream_and_leaves_its_core_with_the_port(
    stand_in: StandIns,
) -> None:
    row = shutdown.observe(stand_in(shares_port=True), "SIGKILL of the server, streaming")
    assert (row.exit, row.stream, row.left) == ("killed by SIGKILL", CUT, ("core", "port"))
    assert row.tokens and row.seconds is not None


def test_a_server_that_outlives_its_core_runs_on(stand_in: StandIns) -> None:
    row = shutdown.observe(stand_in(), "SIGKILL of the core, idle", SHORT_S)
    assert (row.exit, row.seconds, row.stream, row.left) == (RUNS, None, "", ())


def test_a_second_signal_to_a_server_that_has_ended_is_no_error(stand_in: StandIns) -> None:
    row = shutdown.observe(stand_in(), "SIGTERM twice, idle")
    assert (row.exit, row.left) == ("killed by SIGTERM", ("core",))
