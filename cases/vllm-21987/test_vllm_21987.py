"""vllm#21987: a request with min_tokens must not end at a stop string before that many tokens."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import Engine

LEAST = 20
SAMPLING = {"max_tokens": 2 * LEAST, "seed": 1, "ignore_eos": True}


def ask(engine: Engine) -> None:
    (plain,) = engine.generate("Hello", SAMPLING)
    early = plain["outputs"][0]["text"].strip()[0]  # the same seed brings it again, at once
    (stopped,) = engine.generate("Hello", {**SAMPLING, "stop": [early], "min_tokens": LEAST})
    got = len(stopped["outputs"][0]["token_ids"])
    assert got >= LEAST, f"expected at least {LEAST} tokens, got {got}"
    engine.check()


@pytest.mark.vllm_case("vllm-21987")
@pytest.mark.vllm_engine(generation="V1")
def test_stop_string_waits(vllm_engine: Engine) -> None:
    ask(vllm_engine)


@pytest.mark.vllm_case("vllm-21987", variant="v0")
@pytest.mark.vllm_engine(generation="V0")
def test_stop_string_waits_in_v0(vllm_engine: Engine) -> None:
    ask(vllm_engine)
