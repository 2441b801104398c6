"""vllm#57490: the internlm parser loses a call whose first marker is split."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {"type": "integer"}}}},
}
MARKERS = ["<|action_start|>", "<|plugin|>", "<|action_end|>"]
TEXT = '<|action_start|><|plugin|>{"name": "add", "parameters": {"code": 1}}<|action_end|>'


@pytest.mark.vllm_case("vllm-57490")
def test_split_marker(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "internlm", "tools": [TOOL]}
    expected = [{"name": "add", "arguments": '{"code": 1}'}]
    unsplit = vllm_probe("parsers:tool_calls", pieces=[TEXT], markers=MARKERS, **options)["characters"]["calls"]
    vllm_at_work("the call is streamed if each marker is one delta", unsplit == expected)
    calls = vllm_probe("parsers:tool_calls", pieces=[TEXT], **options)["characters"]["calls"]
    assert calls == expected, f"internlm streams {calls} for a split marker"
