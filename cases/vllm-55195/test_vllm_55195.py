"""vllm#55195: the start marker leaks into streamed reasoning."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

MARKERS = ["<think>", "</think>"]


@pytest.mark.vllm_case("vllm-55195")
def test_marker_and_text_in_one_delta(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    asked: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "deepseek_r1", "markers": MARKERS}
    found = vllm_probe("reasoning", pieces=["<think>step"], **asked)
    whole, streamed = found["whole"]["reasoning"], found["streamed"]["reasoning"]
    vllm_at_work("the marker is taken out when it comes by itself", found["characters"]["reasoning"] == whole == "step")
    assert streamed == whole, f"expected reasoning {whole!r} from the stream, got {streamed!r}"
