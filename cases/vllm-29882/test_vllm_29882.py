"""vllm#29882: reasoning must be streamed as reasoning."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe


@pytest.mark.vllm_case("vllm-29882")
def test_streamed(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "minimax_m2", "markers": ["<think>", "</think>"]}
    result = vllm_probe("parsers:reasoning", pieces=["Let me see.", "</think>", "Four."], **options)
    whole, streamed = result["whole"], result["streamed"]
    vllm_at_work("the whole text is split", whole == {"reasoning": "Let me see.", "content": "Four."})
    assert streamed == whole, (
        f"minimax_m2 streams the reasoning {streamed['reasoning']!r} and the answer {streamed['content']!r}"
    )
