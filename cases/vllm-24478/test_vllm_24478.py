"""vllm#24478: the kimi_k2 parser returns the last of several calls alone."""

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
    asked: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "kimi_k2", "tools": [TOOL], "markers": MARKERS}
    both = "".join(CALL.format(number, f'{{"code": {number + 1}}}') for number in (0, 1))
    found = vllm_probe("tool_calls", pieces=[TEXT.format(both)], **asked)
    wanted = [{"name": "add", "arguments": f'{{"code": {code}}}'} for code in (1, 2)]
    vllm_at_work("both calls are streamed", found["characters"]["calls"] == wanted)
    calls = found["whole"]["calls"]
    assert calls == wanted, f"kimi_k2 returns {calls} of two calls"
