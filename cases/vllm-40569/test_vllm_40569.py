"""vllm-project/vllm#40569: a server on the CPU must start with thread binding turned off."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, EngineSpec, Server

pytestmark = pytest.mark.vllm_case("vllm-40569")


@pytest.fixture
def engine_spec(engine_spec: EngineSpec, vllm_leg: str) -> EngineSpec:
    """Turn thread binding off in the subject leg, and leave it automatic in the control leg."""
    binding = "nobind" if vllm_leg == "subject" else "auto"
    return engine_spec.merged_with({"env": {"VLLM_CPU_OMP_THREADS_BIND": binding}})


@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_nobind(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
    answer = vllm_server.post("/v1/completions", body)
    vllm_at_work("the server answers", answer.status_code == 200 and answer.json()["choices"])
    vllm_server.check()
