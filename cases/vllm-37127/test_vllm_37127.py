"""vllm#37127: a priority that does not fit must be answered with a 4xx status."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Server


@pytest.mark.vllm_case("vllm-37127")
@pytest.mark.vllm_requires(vllm=">=0.9.2")  # the first whose V1 engine accepts a priority
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_huge_priority(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body: dict[str, Any] = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 4}
    plain = vllm_server.post("/v1/completions", {**body, "priority": 7})
    vllm_at_work("a small priority is accepted", plain.status_code == 200 and plain.json()["choices"])
    answer = vllm_server.post("/v1/completions", {**body, "priority": 2**70})
    assert 400 <= answer.status_code < 500, (
        f"a priority of 2^70 is answered with {answer.status_code}: {answer.text[:500]}"
    )
    vllm_server.check()
