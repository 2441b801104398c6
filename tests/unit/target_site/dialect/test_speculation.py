"""Arguments for speculative decoding in each vLLM, and versions without it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
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
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Pretend that vLLM 0.10.2 is installed, whose V0 has no speculative decoding. Returns the
    folder of its V1."""
    vllm: Any = ModuleType("vllm")
    vllm.__version__, vllm.__path__ = "0.10.2", [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "__init__.py").touch()
    yield tmp_path / "v1"
    sys.modules.pop("vllm.v1", None)


def test_v1_had_no_speculative_decoding_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.7.2")
    with pytest.raises(Unsupported, match="speculative decoding in V1") as caught:
        speculation.translate(NGRAMS, {"device": "sim", "generation": "V1"}, FLAT)
    assert caught.value.claim == {"since": "0.7.3"}


@pytest.mark.parametrize(
    ("fields", "sizes"),
    [
        ({"ngram_prompt_lookup_min": 2, "ngram_prompt_lookup_max": 3}, (2, 3)),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 3}, (2, 3)),
        ({}, (None, None)),
    ],
)
def test_the_sizes_of_a_lookup_were_renamed(
    fields: dict[str, int], sizes: tuple[int | None, int | None]
) -> None:
    assert speculation.lookup_sizes(SimpleNamespace(**fields)) == sizes


def test_since_0_8_there_is_one_argument(installed: Path) -> None:
    (installed / "spec_decode.py").touch()
    importlib.invalidate_caches()
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
