"""vllm#24478: the kimi_k2 parser returns only the last of several calls."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {"type": "integer"}}}},
}
MARKERS = [
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
]
CALL = "<|tool_call_begin|>functions.add:{0}<|tool_call_argument_begin|>{1}<|tool_call_end|>"
TEXT = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>"


@pytest.mark.vllm_case("vllm-24478")
def test_two_calls(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "kimi_k2", "tools": [TOOL], "markers": MARKERS}
    both = "".join(CALL.format(number, f'{{"code": {number + 1}}}') for number in (0, 1))
    result = vllm_probe("parsers:tool_calls", pieces=[TEXT.format(both)], **options)
    expected = [{"name": "add", "arguments": f'{{"code": {code}}}'} for code in (1, 2)]
    vllm_at_work("both calls are streamed", result["characters"]["calls"] == expected)
    calls = result["whole"]["calls"]
    assert calls == expected, f"kimi_k2 returns {calls} for two calls"
