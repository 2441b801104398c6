"""vllm#51654: a body that is no JSON object must be answered with a 4xx status."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Server


@pytest.mark.vllm_case("vllm-51654")
@pytest.mark.vllm_engine(front="serve", generation="V1")
@pytest.mark.parametrize("endpoint", ["completions", "chat/completions"])
def test_no_object(vllm_server: Server, vllm_at_work: AtWork, endpoint: str) -> None:
    prompt: dict[str, Any] = (
        {"prompt": "Hello"} if endpoint == "completions" else {"messages": [{"role": "user", "content": "Hello"}]}
    )
    body = {"model": vllm_server.model, "max_tokens": 4, **prompt}
    whole = vllm_server.post(f"/v1/{endpoint}", body)
    vllm_at_work("an object is accepted", whole.status_code == 200 and whole.json()["choices"])
    answer = vllm_server.client.post(f"/v1/{endpoint}", json=[body], timeout=60)
    assert 400 <= answer.status_code < 500, f"a list is answered with {answer.status_code}: {answer.text[:500]}"
    vllm_server.check()
