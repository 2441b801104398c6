"""vllm-project/vllm#50529: a second SIGTERM must not kill the engine core during its clean-up."""

from __future__ import annotations

import signal
import time

import pytest
from packaging.version import Version

from pytest_vllm_regress import AtWork, EngineSpec, Server, Target

# 0.9 is the first release whose engine core shuts the scheduler down.
pytestmark = [
    pytest.mark.vllm_requires(vllm=">=0.9"),
    pytest.mark.vllm_engine(
        front="serve", generation="V1", import_path=["plugins"], extra={"scheduler_cls": "slow_end.SlowEnd"}
    ),
]
BEGINS = "scheduler: clean-up begins"
COMPLETE = "scheduler: clean-up complete"


@pytest.fixture
def engine_spec(engine_spec: EngineSpec, vllm_env: Target) -> EngineSpec:
    """Grant time for the clean-up where the default is none. Before 0.18 it is five seconds."""
    has_option = Version(vllm_env.versions["vllm"]) >= Version("0.18")
    return engine_spec.merged_with({"extra": {"shutdown_timeout": 15}}) if has_option else engine_spec


def end(server: Server, at_work: AtWork, signals: int) -> None:
    body = {"model": server.model, "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
    answer = server.post("/v1/completions", body)
    at_work("a request is answered", answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 4)
    server.signal(signal.SIGTERM)
    limit = time.monotonic() + 20
    while BEGINS not in server.log() and time.monotonic() < limit:
        time.sleep(0.05)
    at_work("SIGTERM of the server makes the core clean up", BEGINS in server.log())
    for _ in range(signals - 1):
        server.signal(signal.SIGTERM, "core")
    server.wait_for_exit(30, all_processes=True)
    assert COMPLETE in server.log(), f"the clean-up did not finish after {signals} signals"


@pytest.mark.vllm_case("vllm-50529")
def test_second_signal(vllm_server: Server, vllm_at_work: AtWork) -> None:
    end(vllm_server, vllm_at_work, signals=2)


@pytest.mark.vllm_case("vllm-50529", variant="one")
def test_one_signal(vllm_server: Server, vllm_at_work: AtWork) -> None:
    end(vllm_server, vllm_at_work, signals=1)
