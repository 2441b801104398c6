"""vllm-project/vllm#52281: at SIGTERM, the engine core must be given the time to clean up."""

from __future__ import annotations

import signal

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


def end(server: Server, at_work: AtWork) -> None:
    body = {"model": server.model, "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
    answer = server.post("/v1/completions", body)
    at_work("a request is answered", answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 4)
    server.signal(signal.SIGTERM)
    server.wait_for_exit(30, all_processes=True)
    at_work("the server noticed the signal", "Application shutdown complete" in server.log())
    assert COMPLETE in server.log(), f"the core was ended without cleaning up (begun: {BEGINS in server.log()})"


@pytest.mark.vllm_case("vllm-52281")
def test_default(vllm_server: Server, vllm_at_work: AtWork) -> None:
    end(vllm_server, vllm_at_work)


class TestWithTime:
    @pytest.fixture
    def engine_spec(self, engine_spec: EngineSpec, vllm_env: Target) -> EngineSpec:
        has_option = Version(vllm_env.versions["vllm"]) >= Version("0.18")
        return engine_spec.merged_with({"extra": {"shutdown_timeout": 15}}) if has_option else engine_spec

    @pytest.mark.vllm_case("vllm-52281", variant="with-time")
    def test_shutdown_timeout(self, vllm_server: Server, vllm_at_work: AtWork) -> None:
        end(vllm_server, vllm_at_work)
