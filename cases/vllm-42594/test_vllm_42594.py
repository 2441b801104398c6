"""vllm#42594: every endpoint that runs the model must ask for the API key."""

from __future__ import annotations

import httpx
import pytest

from pytest_vllm_regress import AtWork, Server


@pytest.mark.vllm_case("vllm-42594")
@pytest.mark.vllm_requires(
    vllm="!=0.8.0,!=0.8.1,!=0.8.2", cause="failure"
)  # there /v1/rerank and /v2/rerank answer 500
@pytest.mark.vllm_engine(front="serve", model="reranker", task="score")
def test_key(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body = {"model": vllm_server.model, "query": "what is a cat", "documents": ["an animal", "42"]}
    known = vllm_server.post("/v2/rerank", body)
    vllm_at_work("with the key, the endpoint ranks", known.status_code == 200 and len(known.json()["results"]) == 2)

    def without_key(path: str) -> int:
        return httpx.post(vllm_server.base_url.removesuffix("/v1") + path, json=body, timeout=60).status_code

    vllm_at_work("without it, /v1/rerank refuses", without_key("/v1/rerank") == 401)
    status = without_key("/v2/rerank")
    assert status == 401, f"/v2/rerank without the key is answered with {status}"
    vllm_server.check()
