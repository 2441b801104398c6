"""vllm#21704: a request that the model does not support must get an error status."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Server

pytestmark = pytest.mark.vllm_case("vllm-21704")

MESSAGES = [{"role": "user", "content": "Hello"}]
POOLING: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": "Hello"},
    "/pooling": {"input": "Hello"},
    "/score": {"text_1": "Hello", "text_2": "Hello"},
    "/rerank": {"query": "Hello", "documents": ["Hello"]},
}
GENERATING: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hello", "max_tokens": 1},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
}


def check_rejected(server: Server, at_work: AtWork, requests: dict[str, dict[str, Any]], path: str) -> None:
    unknown = server.post("/v1/no-such-address", {"model": server.model})
    at_work("an unknown endpoint is answered with 404", unknown.status_code == 404)
    answer = server.post(path, {"model": server.model, **requests[path]})
    assert 400 <= answer.status_code < 500, f"status {answer.status_code} for {path}: {answer.text[:300]}"
    server.check()


@pytest.mark.vllm_engine(front="serve")
@pytest.mark.parametrize("path", POOLING)
def test_pooling_request_to_a_generating_model(vllm_server: Server, vllm_at_work: AtWork, path: str) -> None:
    check_rejected(vllm_server, vllm_at_work, POOLING, path)


@pytest.mark.vllm_engine(front="serve", task="embed")
@pytest.mark.parametrize("path", GENERATING)
def test_generation_request_to_a_pooling_model(vllm_server: Server, vllm_at_work: AtWork, path: str) -> None:
    check_rejected(vllm_server, vllm_at_work, GENERATING, path)
