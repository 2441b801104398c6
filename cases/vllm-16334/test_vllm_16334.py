"""vllm#16334: a server of embeddings must start with data parallelism, too."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import Server


@pytest.mark.vllm_case("vllm-16334")
@pytest.mark.vllm_engine(front="serve", task="embed", data_parallel_size=2, timeout=60)
def test_embeddings_on_two_ranks(vllm_server: Server) -> None:
    (vector,) = vllm_server.embed("Hello")
    assert vector, "expected a vector"
