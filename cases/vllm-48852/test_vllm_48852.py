"""vllm#48852: the internlm parser streams no arguments if the JSON of a call has no spaces."""

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
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "internlm", "tools": [TOOL], "markers": MARKERS}
    result = vllm_probe("parsers:tool_calls", pieces=PIECES, **options)
    vllm_at_work(
        "the same call is streamed character by character",
        result["characters"]["calls"] == result["whole"]["calls"] != [],
    )
    whole, streamed = result["whole"]["calls"], result["streamed"]["calls"]
    assert streamed == whole, f"internlm streams {streamed} instead of {whole}"
