"""Speculative decoding in the words of each vLLM, and where there is none."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import Unsupported
from pytest_vllm_regress.target_site.vllm_regress_target.dialect import speculation

NGRAMS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 2}
FLAT = {
    *("speculative_model", "num_speculative_tokens", "ngram_prompt_lookup_max", "ngram_prompt_lookup_min"),
    "speculative_disable_by_batch_size",
}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vLLM 0.10.2, which has no speculative decoding in V0 any more."""
    made: Any = ModuleType("vllm")
    made.__version__, made.__path__ = "0.10.2", []
    monkeypatch.setitem(sys.modules, "vllm", made)


def test_one_argument_since_0_8() -> None:
    spec = {"device": "sim", "generation": "V1"}
    assert speculation.worded(NGRAMS, spec, {"speculative_config"}) == {"speculative_config": NGRAMS}


def test_an_argument_for_each_up_to_0_7() -> None:
    given = {**NGRAMS, "disable_by_batch_size": 8}
    assert speculation.worded(given, {"device": "sim"}, FLAT) == {
        "speculative_model": "[ngram]",
        "num_speculative_tokens": 4,
        "ngram_prompt_lookup_max": 3,
        "ngram_prompt_lookup_min": 2,
        "speculative_disable_by_batch_size": 8,
    }


def test_a_draft_model_up_to_0_7() -> None:
    given = {"model": "/draft", "num_speculative_tokens": 2}
    assert speculation.worded(given, {"device": "gpu"}, FLAT) == {
        "speculative_model": "/draft",
        "num_speculative_tokens": 2,
    }


def test_a_network_that_drafts_is_not_simulated() -> None:
    with pytest.raises(Unsupported, match="drafts by n-grams only: 'eagle' needs a network") as caught:
        speculation.worded({"method": "eagle"}, {"device": "sim"}, {"speculative_config"})
    assert caught.value.claim == {"device": "sim"}


def test_v0_lost_it() -> None:
    with pytest.raises(Unsupported, match="speculative decoding in V0") as caught:
        speculation.worded(NGRAMS, {"device": "sim", "generation": "V0"}, {"speculative_config"})
    assert caught.value.claim == {"until": "0.9.2"}
