"""vllm#27701: the llama3_json parser takes no argument that is nested twice."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "object"}}}},
}


@pytest.mark.vllm_case("vllm-27701")
def test_nested_argument(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    asked: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "llama3_json", "tools": [TOOL]}
    found = vllm_probe("tool_calls", pieces=['{"name": "add", "parameters": {"a": {"b": {"c": 1}}}}'], **asked)
    wanted = [{"name": "add", "arguments": '{"a": {"b": {"c": 1}}}'}]
    vllm_at_work("the same call is streamed", found["characters"]["calls"] == wanted)
    calls = found["whole"]["calls"]
    assert calls == wanted, f"llama3_json makes {calls} of a nested argument"
