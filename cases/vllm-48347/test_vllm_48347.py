"""vllm#48347: the internlm parser loses a call that follows text in the same delta."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {"type": "integer"}}}},
}
MARKERS = ["<|action_start|>", "<|plugin|>", "<|action_end|>"]
SANE = ["Sure.", '<|action_start|><|plugin|>{"name": "add", "parameters": {"code": 1}}<|action_end|>']
BAD = ["".join(SANE)]


@pytest.mark.vllm_case("vllm-48347")
def test_stream(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    asked: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "internlm", "tools": [TOOL], "markers": MARKERS}
    sane = vllm_probe("tool_calls", pieces=SANE, **asked)
    vllm_at_work("the same call is streamed by characters", sane["characters"]["calls"] == sane["whole"]["calls"] != [])
    found = vllm_probe("tool_calls", pieces=BAD, **asked)
    whole, streamed = found["whole"]["calls"], found["streamed"]["calls"]
    assert streamed == whole, f"internlm streams {streamed} of {whole}"
