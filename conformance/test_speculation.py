"""Speculative decoding with n-grams or a draft model: drafts are proposed and accepted, and change
no answer."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pytest_vllm_regress import (
    AsyncEngine,
    Engine,
    Engines,
    RequestOutput,
    Script,
    ScriptError,
    Server,
)

NGRAMS = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 2,
}
pytestmark = pytest.mark.vllm_engine(extra={"speculative_config": NGRAMS}, generation=["V0", "V1"])
REPEATED = "one two three four; " * 6
SMALLER, ITSELF = (
    {"speculative_config": {"method": "draft_model", "model": model, "num_speculative_tokens": 3}}
    for model in ("draft", "text")
)
counted_in_v1 = pytest.mark.generation_only(
    "V1", "V0 counts drafts on CUDA alone, and every five seconds at most"
)
PROMPTS = ["x y z " * 9, "1 2 3 " * 8, "nothing is repeated"]


def tokens(results: list[RequestOutput]) -> list[list[int]]:
    return [result["outputs"][0]["token_ids"] for result in results]


def test_script(vllm_engine: Engine) -> None:
    texts = [REPEATED, "short", "ab" * 40]
    results = vllm_engine.generate(
        [Script.text(text).prompt(text[:3]) for text in texts], {"max_tokens": 200}
    )
    assert [result["outputs"][0]["text"] for result in results] == texts


def test_greedy_as_without(vllm_engine: Engine, vllm_engines: Engines) -> None:
    sampling = {"max_tokens": 60, "temperature": 0, "ignore_eos": True}
    drafted = tokens(vllm_engine.generate(PROMPTS, sampling))
    without = vllm_engines(generation=vllm_engine.spec.generation)
    assert isinstance(without, Engine)
    try:
        assert drafted == tokens(without.generate(PROMPTS, sampling))
    finally:
        vllm_engines.release(without)


@pytest.mark.vllm_engine(extra=SMALLER)
def test_draft_model(vllm_engine: Engine, vllm_engines: Engines) -> None:
    test_greedy_as_without(vllm_engine, vllm_engines)


def test_n_4(vllm_engine: Engine) -> None:
    scripts = [Script.text(f"{number} and " * 9) for number in range(4)]
    (result,) = vllm_engine.generate(
        scripts[0].prompt("Hello", *scripts[1:]), {"n": 4, "max_tokens": 90}
    )
    texts = {output["index"]: output["text"] for output in result["outputs"]}
    assert texts == {number: f"{number} and " * 9 for number in range(4)}


def test_ends_by_length_and_by_a_stop_string(vllm_engine: Engine) -> None:
    script = Script.text("over and over " * 8)
    sampling: list[dict[str, Any]] = [
        {"max_tokens": 61},
        {"max_tokens": 200, "stop": ["ver and over o"]},
    ]
    short, stopped = vllm_engine.generate([script.prompt()] * 2, sampling)
    assert (
        len(short["outputs"][0]["token_ids"]) == 61
        and short["outputs"][0]["finish_reason"] == "length"
    )
    assert stopped["outputs"][0]["text"] == "o" and stopped["outputs"][0]["finish_reason"] == "stop"


@pytest.mark.vllm_engine(structured_output_backend="xgrammar")
def test_grammar(vllm_engine: Engine) -> None:
    sampling = {"max_tokens": 99, "structured_outputs": {"regex": "(ab ){8}[0-9]"}}
    (result,) = vllm_engine.generate(Script.text("ab " * 8 + "7").prompt(), sampling)
    assert result["outputs"][0]["text"] == "ab " * 8 + "7"
    with pytest.raises(ScriptError, match=r"wanted 'a', .*forbids"):
        vllm_engine.generate(Script.text("ab " * 9).prompt(), sampling)


@pytest.mark.generation_only(
    "V0",
    "V1 merges the steps that wait for a reader, so its results do not tell how many tokens a step made",
)
@pytest.mark.vllm_engine(front="async")
def test_several_tokens_a_step(vllm_engine: AsyncEngine) -> None:
    """V0 returns a result for each step, so fewer results than tokens mean accepted drafts."""
    (stream,) = vllm_engine.generate(Script.text(REPEATED).prompt(), {"max_tokens": 200})
    assert stream[-1]["outputs"][0]["text"] == REPEATED and len(stream) < len(REPEATED) / 2


@counted_in_v1
def test_accepted(vllm_server: Server) -> None:
    """After a repetitive prompt, a model without a script also repeats itself sooner or later."""
    prompts = ["1 2 3 " * 9, "the same, " * 9, "ab" * 30, "-" * 40]
    body = {
        "model": vllm_server.model,
        "prompt": prompts,
        "max_tokens": 200,
        "temperature": 0,
        "ignore_eos": True,
    }
    assert vllm_server.post("/v1/completions", body).is_success
    counts = re.findall(
        r"^vllm:spec_decode_num_(draft|accepted)_tokens_total\{.* ([0-9.e+]+)$",
        vllm_server.get("/metrics").text,
        re.MULTILINE,
    )
    if not counts:
        pytest.skip("this vLLM counts no drafts in V1")
    total = {name: float(value) for name, value in counts}
    assert 0 < total["accepted"] <= total["draft"]


@counted_in_v1
@pytest.mark.vllm_engine(extra=SMALLER)
def test_draft_model_accepted(vllm_server: Server) -> None:
    """The draft model is the first layer of the model and sometimes agrees with it: some drafts are
    accepted, not all."""
    drafted, accepted = draft_counts(vllm_server)
    assert 0 < accepted < drafted


@counted_in_v1
@pytest.mark.vllm_engine(extra=ITSELF)
def test_draft_of_the_model_itself(vllm_server: Server) -> None:
    drafted, accepted = draft_counts(vllm_server)
    assert 0 < accepted == drafted


def draft_counts(server: Server) -> tuple[float, float]:
    """Return the numbers of drafted and accepted tokens for greedy answers to all prompts.

    Each answer has 101 tokens: one, and then 25 times three drafts and one.
    """
    body = {
        "model": server.model,
        "prompt": PROMPTS,
        "max_tokens": 101,
        "temperature": 0,
        "ignore_eos": True,
    }
    assert server.post("/v1/completions", body).is_success
    metrics = server.metrics()
    drafted, accepted = (
        metrics.total(f"vllm:spec_decode_num_{name}_tokens_total") for name in ("draft", "accepted")
    )
    return drafted, accepted
