"""vllm#34745: a tool result must keep the id of its call."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe


@pytest.mark.vllm_case("vllm-34745")
def test_id(vllm_probe: Probe, vllm_at_work: AtWork) -> None:
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}]},
    ]
    chat = vllm_probe("chat_messages", messages=messages)
    (call,) = [message["tool_calls"][0] for message in chat if message["role"] == "assistant"]
    (result,) = [message for message in chat if message["role"] == "tool"]
    vllm_at_work("call and result are translated", call["id"] == "toolu_1" and result["content"] == "sunny")
    assert result["tool_call_id"] == call["id"], f"the result belongs to the call {result['tool_call_id']!r}"
