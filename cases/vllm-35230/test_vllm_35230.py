"""vllm#35230: the qwen3 parser returns thinking that was cut off as the answer."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

MARKERS = ["<think>", "</think>"]


@pytest.mark.vllm_case("vllm-35230")
def test_thinking_is_cut_off(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    found = vllm_probe(
        "reasoning", tokenizer=vllm_model_path, parser="qwen3", markers=MARKERS, pieces=["<think>step by step"]
    )
    vllm_at_work("streamed it is thinking", found["characters"]["reasoning"] == "step by step")
    content = found["whole"]["content"]
    assert content == "", f"qwen3 takes cut-off thinking for the answer: {content!r}"
