"""vllm#30648: an empty list of tool calls must not reach the chat template."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe


@pytest.mark.vllm_case("vllm-30648")
def test_empty_list(vllm_probe: Probe, vllm_at_work: AtWork) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": "Paris."}
    calling = vllm_probe("prepared", message={**message, "tool_calls": [call]})
    arguments = calling["tool_calls"][0]["function"]["arguments"]
    vllm_at_work("calls reach the template", arguments == {"a": 1})
    plain = vllm_probe("prepared", message={**message, "tool_calls": []})
    vllm_at_work("the text reaches the template", plain["content"] == "Paris.")
    assert "tool_calls" not in plain, f"the template gets an empty list of tool calls: {plain}"
