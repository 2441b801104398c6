"""vllm-project/vllm#29686: no tokenizer can be loaded with transformers 5"""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

pytestmark = pytest.mark.vllm_case("vllm-29686")


def test_a_tokenizer_is_loaded(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    tokens = vllm_probe("with_transformers", path=vllm_model_path)
    vllm_at_work("transformers loads the tokenizer", tokens)
    loaded = vllm_probe("with_vllm", path=vllm_model_path)
    assert loaded == tokens, f"expected {tokens}, got {loaded}"
