"""vllm#35230: the qwen3 parser returns truncated reasoning as the answer."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

MARKERS = ["<think>", "</think>"]


@pytest.mark.vllm_case("vllm-35230")
def test_truncated_reasoning(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    result = vllm_probe(
        "parsers:reasoning", tokenizer=vllm_model_path, parser="qwen3", markers=MARKERS, pieces=["<think>step by step"]
    )
    vllm_at_work("it is streamed as reasoning", result["characters"]["reasoning"] == "step by step")
    content = result["whole"]["content"]
    assert content == "", f"qwen3 returns truncated reasoning as content: {content!r}"
