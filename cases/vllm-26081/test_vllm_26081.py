"""vllm#26081: a batch that fails must leave no requests behind."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Engine, RemoteError


@pytest.mark.vllm_case("vllm-26081")
@pytest.mark.vllm_requires(vllm=">=0.7.1", cause="failure")  # before, such a prompt is not refused and ends the engine
@pytest.mark.vllm_engine(generation="V1", max_model_len=64, fresh=True)
def test_next_batch(vllm_engine: Engine, vllm_at_work: AtWork) -> None:
    (plain,) = vllm_engine.generate(["Hello"], {"max_tokens": 4})
    vllm_at_work("a batch of 1 has one result", len(plain["outputs"]) == 1)
    with pytest.raises(RemoteError, match="(?i)longer than|max_model_len|maximum (model|context) length"):  # noqa: RUF043 - the proof covers the text
        vllm_engine.generate(["Hello", "word " * 100], {"max_tokens": 4})
    results = vllm_engine.generate(["Hello"], {"max_tokens": 4})
    assert len(results) == 1, f"a batch of 1 after one that failed has {len(results)} results"
    vllm_engine.check()
