"""vllm#35456: a response_format that lacks its schema must be answered with a 4xx status."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Server


@pytest.mark.vllm_case("vllm-35456")
@pytest.mark.vllm_engine(front="serve", generation="V1")
@pytest.mark.parametrize("endpoint", ["completions", "chat/completions"])
def test_missing_schema(vllm_server: Server, vllm_at_work: AtWork, endpoint: str) -> None:
    prompt: dict[str, Any] = (
        {"prompt": "Hello"} if endpoint == "completions" else {"messages": [{"role": "user", "content": "Hello"}]}
    )
    body = {"model": vllm_server.model, "max_tokens": 40, **prompt}
    schema = {"name": "answer", "schema": {"type": "boolean"}}
    whole = vllm_server.post(
        f"/v1/{endpoint}", {**body, "response_format": {"type": "json_schema", "json_schema": schema}}
    )
    vllm_at_work("a format with a schema is accepted", whole.status_code == 200 and whole.json()["choices"])
    answer = vllm_server.post(f"/v1/{endpoint}", {**body, "response_format": {"type": "json_schema"}})
    assert 400 <= answer.status_code < 500, (
        f"a format without schema is answered with {answer.status_code}: {answer.text[:500]}"
    )
    vllm_server.check()
