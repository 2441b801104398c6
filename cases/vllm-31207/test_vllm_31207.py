"""vllm#31207: the kimi_k2 parser streams the text of calls as content."""

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


@pytest.mark.vllm_case("vllm-31207")
def test_content_beside_calls(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "kimi_k2", "tools": [TOOL], "markers": MARKERS}
    result = vllm_probe("parsers:tool_calls", pieces=[TEXT.format(CALL.format(0, '{"code": 1}'))], **options)
    vllm_at_work("the call is streamed", result["characters"]["calls"] == result["whole"]["calls"] != [])
    content = result["characters"]["content"]
    assert content == "", f"kimi_k2 streams content {content!r} with a call"
