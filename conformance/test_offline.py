"""The offline engine: the output has what the sampling parameters ask for."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import CompletionOutput, Engine, RemoteError

pytestmark = [pytest.mark.vllm_engine(generation=["V0", "V1"]), pytest.mark.smoke]
LONG = {"max_tokens": 32, "ignore_eos": True}
GREEDY = {**LONG, "temperature": 0}


def first(engine: Engine, sampling: dict[str, Any], prompt: str = "Hello") -> CompletionOutput:
    """Return the first output for one prompt."""
    (answer,) = engine.generate(prompt, sampling)
    return answer["outputs"][0]


def letter_in(text: str) -> str:
    return next(
        letter for letter in text[3:] if letter.isascii() and letter.isprintable() and letter != " "
    )


def test_start(vllm_engine: Engine) -> None:
    assert vllm_engine.started.generation == vllm_engine.spec.generation


def test_generate(vllm_engine: Engine) -> None:
    (answer,) = vllm_engine.generate("Hello", {"max_tokens": 9, "ignore_eos": True})
    (output,) = answer["outputs"]
    assert (
        answer["finished"] and len(output["token_ids"]) == 9 and output["finish_reason"] == "length"
    )


def test_chat(vllm_engine: Engine) -> None:
    (answer,) = vllm_engine.chat(
        [{"role": "user", "content": "Hello"}], {"max_tokens": 4, "n": 2, "ignore_eos": True}
    )
    assert [len(output["token_ids"]) for output in answer["outputs"]] == [4, 4]


def test_n_8(vllm_engine: Engine) -> None:
    (answer,) = vllm_engine.generate("Hello", {**LONG, "n": 8})
    assert [output["index"] for output in answer["outputs"]] == list(range(8))
    assert len({tuple(output["token_ids"]) for output in answer["outputs"]}) > 1


def test_seed_repeats(vllm_engine: Engine) -> None:
    reference, same, other = (
        first(vllm_engine, {**LONG, "seed": seed})["token_ids"] for seed in (3, 3, 4)
    )
    assert reference == same and reference != other


def test_greedy_repeats_in_any_batch(vllm_engine: Engine) -> None:
    alone = first(vllm_engine, GREEDY)["token_ids"]
    among = [
        answer["outputs"][0]["token_ids"]
        for answer in vllm_engine.generate(["another", "Hello", "two" * 50], GREEDY)
    ]
    assert among[1] == alone and among[0] != alone


def test_stop_string(vllm_engine: Engine) -> None:
    letter = letter_in(first(vllm_engine, GREEDY)["text"])
    output = first(vllm_engine, {**GREEDY, "stop": [letter]})
    assert (
        output["finish_reason"] == "stop"
        and output["stop_reason"] == letter
        and letter not in output["text"]
    )


def test_stop_token(vllm_engine: Engine) -> None:
    tokens = first(vllm_engine, GREEDY)["token_ids"]
    output = first(vllm_engine, {**GREEDY, "stop_token_ids": [tokens[5]]})
    assert (
        output["finish_reason"] == "stop"
        and output["token_ids"] == tokens[: tokens.index(tokens[5]) + 1]
    )


def test_ends_by_itself(vllm_engine: Engine) -> None:
    answers = vllm_engine.generate([f"text {number}" for number in range(40)], {"max_tokens": 120})
    assert "stop" in {answer["outputs"][0]["finish_reason"] for answer in answers}


def test_min_tokens(vllm_engine: Engine) -> None:
    answers = vllm_engine.generate(
        [f"text {number}" for number in range(40)], {"min_tokens": 60, "max_tokens": 61}
    )
    assert min(len(answer["outputs"][0]["token_ids"]) for answer in answers) >= 60


def test_logprobs(vllm_engine: Engine) -> None:
    output = first(vllm_engine, {**LONG, "logprobs": 3})
    steps = output["logprobs"] or []
    assert len(steps) == 32
    for token, step in zip(output["token_ids"], steps, strict=True):
        assert (
            step is not None
            and str(token) in step
            and 3 <= len(step) <= 4
            and max(step.values()) <= 0
        )


def test_prompt_logprobs(vllm_engine: Engine) -> None:
    (answer,) = vllm_engine.generate("Hello", {"max_tokens": 1, "prompt_logprobs": 2})
    scores = answer["prompt_logprobs"] or []
    assert len(scores) == len(answer["prompt_token_ids"]) and scores[0] is None
    assert all(
        step is not None and str(token) in step and 2 <= len(step) <= 3
        for token, step in zip(answer["prompt_token_ids"][1:], scores[1:], strict=True)
    )


def test_logit_bias(vllm_engine: Engine) -> None:
    assert (
        first(vllm_engine, {"max_tokens": 5, "logit_bias": {"70": 100.0}})["token_ids"] == [70] * 5
    )


def test_allowed_token_ids(vllm_engine: Engine) -> None:
    assert set(first(vllm_engine, {**LONG, "allowed_token_ids": [65, 66]})["token_ids"]) <= {65, 66}


def test_bad_words(vllm_engine: Engine) -> None:
    # A token that is a single letter.
    byte = next(
        token for token in first(vllm_engine, GREEDY)["token_ids"] if ord("!") <= token <= ord("~")
    )
    assert byte not in first(vllm_engine, {**GREEDY, "bad_words": [chr(byte)]})["token_ids"]


def test_penalties(vllm_engine: Engine) -> None:
    """High penalties prevent a repetition that a bias favours."""
    tokens = first(
        vllm_engine,
        {**GREEDY, "logit_bias": {"70": 10.0}, "frequency_penalty": 2.0, "presence_penalty": 2.0},
    )["token_ids"]
    assert 1 <= tokens.count(70) < 32


def test_long_prompt_in_chunks(vllm_engine: Engine) -> None:
    prompt = "x1" * 200
    alone = first(vllm_engine, GREEDY, prompt)["token_ids"]
    answers = vllm_engine.generate(["y" * 400, prompt, "a short one"], GREEDY)
    assert answers[1]["outputs"][0]["token_ids"] == alone


def test_200_requests(vllm_engine: Engine) -> None:
    answers = vllm_engine.generate(
        [f"request {number}" for number in range(200)], {"max_tokens": 16, "ignore_eos": True}
    )
    assert [len(answer["outputs"][0]["token_ids"]) for answer in answers] == [16] * 200


def test_bad_request_leaves_the_engine_well(vllm_engine: Engine) -> None:
    with pytest.raises(RemoteError, match="max_tokens"):
        vllm_engine.generate("Hello", {"max_tokens": 0})
    vllm_engine.check()


@pytest.mark.vllm_engine(fresh=True)
def test_stop(vllm_engine: Engine) -> None:
    vllm_engine.check()
    assert vllm_engine.stop() == ()
