"""vllm#49316: the kimi_k2 parser streams arguments with another type than it returns."""

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


@pytest.mark.vllm_case("vllm-49316")
def test_types_of_arguments(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "kimi_k2", "tools": [TOOL], "markers": MARKERS}
    typed = vllm_probe("parsers:tool_calls", pieces=[TEXT.format(CALL.format(0, '{"code": 1}'))], **options)
    vllm_at_work("a number is streamed as a number", typed["characters"]["calls"] == typed["whole"]["calls"] != [])
    result = vllm_probe("parsers:tool_calls", pieces=[TEXT.format(CALL.format(0, '{"code": "1"}'))], **options)
    whole, streamed = result["whole"]["calls"], result["characters"]["calls"]
    assert streamed == whole, f"kimi_k2 streams {streamed} where the whole answer has {whole}"
