"""vllm#55195: the start marker leaks into streamed reasoning."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

MARKERS = ["<think>", "</think>"]


@pytest.mark.vllm_case("vllm-55195")
def test_marker_and_text_in_one_delta(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "deepseek_r1", "markers": MARKERS}
    result = vllm_probe("parsers:reasoning", pieces=["<think>step"], **options)
    whole, streamed = result["whole"]["reasoning"], result["streamed"]["reasoning"]
    vllm_at_work("the marker is removed if it arrives alone", result["characters"]["reasoning"] == whole == "step")
    assert streamed == whole, f"expected reasoning {whole!r} from the stream, got {streamed!r}"
