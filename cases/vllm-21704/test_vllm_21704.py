"""vllm#21704: what a model cannot do is answered with a status that says so."""

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


def refuse(server: Server, at_work: AtWork, wrong: dict[str, dict[str, Any]], path: str) -> None:
    unknown = server.post("/v1/no-such-address", {"model": server.model})
    at_work("an address that is not there is answered with 404", unknown.status_code == 404)
    answer = server.post(path, {"model": server.model, **wrong[path]})
    assert 400 <= answer.status_code < 500, f"status {answer.status_code} for {path}: {answer.text[:300]}"
    server.check()


@pytest.mark.vllm_engine(front="serve")
@pytest.mark.parametrize("path", POOLING)
def test_pooling_of_a_model_that_generates(vllm_server: Server, vllm_at_work: AtWork, path: str) -> None:
    refuse(vllm_server, vllm_at_work, POOLING, path)


@pytest.mark.vllm_engine(front="serve", task="embed")
@pytest.mark.parametrize("path", GENERATING)
def test_generation_of_a_model_that_pools(vllm_server: Server, vllm_at_work: AtWork, path: str) -> None:
    refuse(vllm_server, vllm_at_work, GENERATING, path)
