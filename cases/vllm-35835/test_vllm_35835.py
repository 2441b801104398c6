"""vllm#35835: /v1/messages must accept every tool_choice of Anthropic's protocol."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Server


@pytest.mark.vllm_case("vllm-35835")
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_tool_choice_none(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body: dict[str, Any] = {
        "model": vllm_server.model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 4,
    }
    plain = vllm_server.post("/v1/messages", body)
    vllm_at_work("a message without tools is answered", plain.status_code == 200 and plain.json()["content"])
    tool = {"name": "now", "description": "the time", "input_schema": {"type": "object", "properties": {}}}
    answer = vllm_server.post("/v1/messages", {**body, "tools": [tool], "tool_choice": {"type": "none"}})
    assert answer.status_code == 200, f"tool_choice none is answered with {answer.status_code}: {answer.text[:500]}"
    blocks = [block["type"] for block in answer.json()["content"]]
    assert blocks == ["text"], f"expected text alone, got {blocks}"
    vllm_server.check()
