"""vllm#21987: a stop string must not end a request before min_tokens."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Engine

MIN_TOKENS = 20
SAMPLING = {"max_tokens": 2 * MIN_TOKENS, "seed": 1, "ignore_eos": True}


def ask(engine: Engine, at_work: AtWork) -> None:
    (plain,) = engine.generate("Hello", SAMPLING)
    early = plain["outputs"][0]["text"].strip()[0]  # the same seed generates it again immediately
    (short,) = engine.generate("Hello", {**SAMPLING, "stop": [early]})
    at_work("the stop string ends a request early", len(short["outputs"][0]["token_ids"]) < MIN_TOKENS)
    (stopped,) = engine.generate("Hello", {**SAMPLING, "stop": [early], "min_tokens": MIN_TOKENS})
    got = len(stopped["outputs"][0]["token_ids"])
    assert got >= MIN_TOKENS, f"expected at least {MIN_TOKENS} tokens, got {got}"
    engine.check()


@pytest.mark.vllm_case("vllm-21987")
@pytest.mark.vllm_engine(generation="V1")
def test_stop_string_before_min_tokens(vllm_engine: Engine, vllm_at_work: AtWork) -> None:
    ask(vllm_engine, vllm_at_work)


@pytest.mark.vllm_case("vllm-21987", variant="v0")
@pytest.mark.vllm_engine(generation="V0")
def test_stop_string_waits_in_v0(vllm_engine: Engine, vllm_at_work: AtWork) -> None:
    ask(vllm_engine, vllm_at_work)
