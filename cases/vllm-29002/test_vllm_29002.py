"""vllm#29002: a request must run on the rank that its header names."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Server

REQUESTS = 6


@pytest.mark.vllm_case("vllm-29002")
@pytest.mark.vllm_requires(vllm=">=0.10")  # the first whose metrics name the engine
@pytest.mark.vllm_engine(front="serve", generation="V1", data_parallel_size=2)
def test_rank(vllm_server: Server, vllm_at_work: AtWork) -> None:
    def finished(engine: int) -> float:
        return vllm_server.metrics().total("vllm:generation_tokens_total", engine=str(engine))

    body: dict[str, Any] = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
    before = [finished(engine) for engine in (0, 1)]
    for _ in range(REQUESTS):
        headers = {"X-data-parallel-rank": "1"}
        answer = vllm_server.client.post("/v1/completions", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
    done = [finished(engine) - before[engine] for engine in (0, 1)]
    vllm_at_work("all requests are counted", sum(done) == REQUESTS * 4)
    assert done[0] == 0, f"rank 0 made {done[0]:.0f} of {sum(done):.0f} tokens that rank 1 was asked for"
