"""vllm#46119: a negative top_n must be rejected."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Server

DOCUMENTS = ["one two", "three", "42"]

pytestmark = [
    pytest.mark.vllm_case("vllm-46119"),
    pytest.mark.vllm_requires(vllm=">=0.8.3"),  # before, top_n does not limit the results
    pytest.mark.vllm_engine(front="serve", task="embed"),
]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_negative_top_n(vllm_server: Server, vllm_at_work: AtWork, path: str) -> None:
    body = {"model": vllm_server.model, "query": "one two three", "documents": DOCUMENTS}
    two = vllm_server.post(path, {**body, "top_n": 2})
    vllm_at_work("top_n limits the results", two.status_code == 200 and len(two.json()["results"]) == 2)
    answer = vllm_server.post(path, {**body, "top_n": -1})
    count = len(answer.json().get("results", [])) if answer.status_code == 200 else 0
    assert 400 <= answer.status_code < 500, (
        f"expected a 4xx for top_n -1, got {answer.status_code} with {count} results: {answer.text[:200]}"
    )
    vllm_server.check()
