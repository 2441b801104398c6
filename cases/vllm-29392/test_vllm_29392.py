"""vllm#29392: the description of a request must work with prompt embeddings."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe


@pytest.mark.vllm_case("vllm-29392")
def test_description(vllm_probe: Probe, vllm_at_work: AtWork) -> None:
    vllm_at_work("a request with tokens is described", "prompt_token_ids" in vllm_probe("described", embeddings=False))
    assert "prompt_embeds" in vllm_probe("described", embeddings=True)
