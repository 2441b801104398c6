"""gpustack#1317: /rerank reports prompt_tokens like the other endpoints."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Server

pytestmark = [
    pytest.mark.vllm_case("gpustack-1317"),
    pytest.mark.vllm_engine(front="serve", task="embed"),
    pytest.mark.vllm_requires(vllm=">=0.8"),  # the first whose /rerank counts tokens
]


def test_usage(vllm_server: Server, vllm_at_work: AtWork) -> None:
    scored = vllm_server.post("/score", {"model": vllm_server.model, "text_1": "one", "text_2": ["two", "three"]})
    vllm_at_work("/score reports prompt_tokens", scored.json()["usage"]["prompt_tokens"] > 0)
    body = {"model": vllm_server.model, "query": "one", "documents": ["two", "three"]}
    usage = vllm_server.post("/rerank", body).json()["usage"]
    assert usage.get("prompt_tokens", 0) == usage["total_tokens"] > 0, f"the usage of /rerank is {usage}"
    vllm_server.check()
