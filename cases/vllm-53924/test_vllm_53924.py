"""vllm#53924: a reasoning marker in the answer itself is not streamed."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

MARKERS = ["<think>", "</think>"]


@pytest.mark.vllm_case("vllm-53924")
@pytest.mark.parametrize("parser", ["deepseek_r1", "ernie45"])
def test_marker_in_the_answer(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str, parser: str) -> None:
    text = "<think>step</think>close with </think> done"
    result = vllm_probe("parsers:reasoning", tokenizer=vllm_model_path, parser=parser, markers=MARKERS, pieces=[text])
    whole, streamed = result["whole"], result["characters"]
    vllm_at_work("reasoning and answer are separated", streamed["reasoning"] == whole["reasoning"] == "step")
    assert streamed["content"] == whole["content"], (
        f"streams content {streamed['content']!r} instead of {whole['content']!r}"
    )
