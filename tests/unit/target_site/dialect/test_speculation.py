"""Arguments for speculative decoding in each vLLM, and versions without it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import Unsupported
from pytest_vllm_regress.target_site.vllm_regress_target.dialect import speculation

NGRAMS = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 2,
}
SIM = {"device": "sim", "generation": "auto"}
FLAT = {
    *(
        "speculative_model",
        "num_speculative_tokens",
        "ngram_prompt_lookup_max",
        "ngram_prompt_lookup_min",
    ),
    "speculative_disable_by_batch_size",
}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that vLLM 0.10.2 is installed, whose V0 has no speculative decoding."""
    vllm: Any = ModuleType("vllm")
    vllm.__version__, vllm.__path__ = "0.10.2", []
    monkeypatch.setitem(sys.modules, "vllm", vllm)


def test_since_0_8_there_is_one_argument() -> None:
    spec = {"device": "sim", "generation": "V1"}
    assert speculation.translate(NGRAMS, spec, {"speculative_config"}) == {
        "speculative_config": NGRAMS
    }


def test_up_to_0_7_each_option_is_an_argument() -> None:
    given = {**NGRAMS, "disable_by_batch_size": 8}
    assert speculation.translate(given, SIM, FLAT) == {
        "speculative_model": "[ngram]",
        "num_speculative_tokens": 4,
        "ngram_prompt_lookup_max": 3,
        "ngram_prompt_lookup_min": 2,
        "speculative_disable_by_batch_size": 8,
    }


def test_up_to_0_7_a_draft_model_is_an_argument() -> None:
    given = {"model": "/draft", "num_speculative_tokens": 2}
    assert speculation.translate(given, {**SIM, "device": "gpu"}, FLAT) == {
        "speculative_model": "/draft",
        "num_speculative_tokens": 2,
    }


def test_a_drafting_network_is_not_simulated() -> None:
    with pytest.raises(
        Unsupported, match="drafts by n-grams only: 'eagle' needs a network"
    ) as caught:
        speculation.translate({"method": "eagle"}, SIM, {"speculative_config"})
    assert caught.value.claim == {"device": "sim"}


def test_v0_lost_speculative_decoding() -> None:
    with pytest.raises(Unsupported, match="speculative decoding in V0") as caught:
        speculation.translate(NGRAMS, {"device": "sim", "generation": "V0"}, {"speculative_config"})
    assert caught.value.claim == {"until": "0.9.2"}
