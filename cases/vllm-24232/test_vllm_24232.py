"""vllm#24232: an unknown tool_choice must be answered with a 4xx status."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Server

pytestmark = pytest.mark.vllm_case("vllm-24232")

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.vllm_engine(front="serve")
def test_unknown_tool_choice_is_refused(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body = {
        "model": vllm_server.model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 4,
        "tools": [TOOL],
    }
    known = vllm_server.post("/v1/chat/completions", {**body, "tool_choice": "none"})
    vllm_at_work("a tool_choice that exists is accepted", known.status_code == 200)
    answer = vllm_server.post("/v1/chat/completions", {**body, "tool_choice": "bogus"})
    assert 400 <= answer.status_code < 500, (
        f"expected a 4xx for an unknown tool_choice, got {answer.status_code}: {answer.text[:500]}"
    )
    vllm_server.check()
