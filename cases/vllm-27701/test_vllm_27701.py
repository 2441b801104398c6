"""vllm#27701: the llama3_json parser rejects an argument that is nested twice."""

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
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "llama3_json", "tools": [TOOL]}
    result = vllm_probe(
        "parsers:tool_calls", pieces=['{"name": "add", "parameters": {"a": {"b": {"c": 1}}}}'], **options
    )
    expected = [{"name": "add", "arguments": '{"a": {"b": {"c": 1}}}'}]
    vllm_at_work("the same call is streamed", result["characters"]["calls"] == expected)
    calls = result["whole"]["calls"]
    assert calls == expected, f"llama3_json returns {calls} for a nested argument"
