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
WORKING = ["Sure.", '<|action_start|><|plugin|>{"name": "add", "parameters": {"code": 1}}<|action_end|>']
FAILING = ["".join(WORKING)]


@pytest.mark.vllm_case("vllm-48347")
def test_stream(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "internlm", "tools": [TOOL], "markers": MARKERS}
    working = vllm_probe("parsers:tool_calls", pieces=WORKING, **options)
    vllm_at_work(
        "the same call is streamed in a delta of its own",
        working["characters"]["calls"] == working["whole"]["calls"] != [],
    )
    result = vllm_probe("parsers:tool_calls", pieces=FAILING, **options)
    whole, streamed = result["whole"]["calls"], result["streamed"]["calls"]
    assert streamed == whole, f"internlm streams {streamed} instead of {whole}"
