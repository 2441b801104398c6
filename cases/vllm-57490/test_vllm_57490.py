"""vllm#57490: the internlm parser loses a call whose first marker comes in parts."""

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
def test_marker_in_parts(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    asked: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "internlm", "tools": [TOOL]}
    wanted = [{"name": "add", "arguments": '{"code": 1}'}]
    entire = vllm_probe("tool_calls", pieces=[TEXT], markers=MARKERS, **asked)["characters"]["calls"]
    vllm_at_work("the call is streamed where each marker is one delta", entire == wanted)
    calls = vllm_probe("tool_calls", pieces=[TEXT], **asked)["characters"]["calls"]
    assert calls == wanted, f"internlm makes {calls} of a marker in parts"
