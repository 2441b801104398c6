"""vllm#49316: the kimi_k2 parser streams arguments of another type than it returns."""

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
    asked: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "kimi_k2", "tools": [TOOL], "markers": MARKERS}
    typed = vllm_probe("tool_calls", pieces=[TEXT.format(CALL.format(0, '{"code": 1}'))], **asked)
    vllm_at_work("a number is streamed as it is", typed["characters"]["calls"] == typed["whole"]["calls"] != [])
    found = vllm_probe("tool_calls", pieces=[TEXT.format(CALL.format(0, '{"code": "1"}'))], **asked)
    whole, streamed = found["whole"]["calls"], found["characters"]["calls"]
    assert streamed == whole, f"kimi_k2 streams {streamed} where the whole answer has {whole}"
