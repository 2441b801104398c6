"""vllm-project/vllm#45424: an engine on the CPU must start with adapters enabled, although memory cannot be pinned there."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Engine, Server


@pytest.mark.vllm_case("vllm-45424")
@pytest.mark.vllm_engine(generation="V1", extra={"enable_lora": True})
def test_an_engine_with_adapters_starts(vllm_engine: Engine, vllm_at_work: AtWork) -> None:
    (result,) = vllm_engine.generate("Hello", {"max_tokens": 4, "ignore_eos": True})
    vllm_at_work("a request is answered", len(result["outputs"][0]["token_ids"]) == 4)
    vllm_engine.check()


@pytest.mark.vllm_case("vllm-45424")
@pytest.mark.vllm_engine(front="serve", generation="V1", extra={"enable_lora": True})
def test_a_server_with_adapters_starts(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
    answer = vllm_server.post("/v1/completions", body)
    vllm_at_work(
        "a request is answered", answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 4
    )
    vllm_server.check()
