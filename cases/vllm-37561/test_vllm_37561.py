"""vllm-project/vllm#37561: a server on the CPU must start after a plain `pip install`, with no library preloaded."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, EngineSpec, Server

pytestmark = pytest.mark.vllm_case("vllm-37561")


@pytest.fixture
def engine_spec(engine_spec: EngineSpec, vllm_leg: str) -> EngineSpec:
    """Preload nothing in the subject leg; the control leg keeps the libraries that vLLM asks for."""
    return engine_spec.merged_with({"env": {"LD_PRELOAD": ""}}) if vllm_leg == "subject" else engine_spec


@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_nothing_is_preloaded(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
    answer = vllm_server.post("/v1/completions", body)
    vllm_at_work("the server answers", answer.status_code == 200 and answer.json()["choices"])
    vllm_server.check()
