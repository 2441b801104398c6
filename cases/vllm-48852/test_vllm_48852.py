"""vllm#48852: the internlm parser streams no arguments of a call without spaces in its JSON."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {"type": "integer"}}}},
}
MARKERS = ["<|action_start|>", "<|plugin|>", "<|action_end|>"]
PIECES = [
    "<|action_start|>",
    "<|plugin|>",
    '{"name": "add"',
    ', "parameters": {"code":1}}',
    "<|action_end|>",
]


@pytest.mark.vllm_case("vllm-48852")
def test_stream(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    asked: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "internlm", "tools": [TOOL], "markers": MARKERS}
    found = vllm_probe("tool_calls", pieces=PIECES, **asked)
    vllm_at_work(
        "the same call is streamed by characters", found["characters"]["calls"] == found["whole"]["calls"] != []
    )
    whole, streamed = found["whole"]["calls"], found["streamed"]["calls"]
    assert streamed == whole, f"internlm streams {streamed} of {whole}"
