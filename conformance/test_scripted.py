"""Scripted answers: the simulated model generates the script in its prompt, through all of stock
vLLM."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest

from pytest_vllm_regress import AsyncEngine, Engine, RequestOutput, Script, ScriptError, Server

pytestmark = pytest.mark.vllm_engine(generation=["V0", "V1"])
ODD = 'Gr\u00fc\u00dfe \U0001f600 {"a": [1, 2]}\n<|>+~|`$%&_\\'
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}


def texts(result: RequestOutput) -> list[str]:
    return [output["text"] for output in result["outputs"]]


def test_batch(vllm_engine: Engine) -> None:
    prompts = [Script.text(f"{number} {ODD}").prompt(f"Hello {number}") for number in range(8)]
    results = vllm_engine.generate([*prompts, "no script"], {"max_tokens": 80, "seed": 1})
    assert [texts(result) for result in results[:8]] == [[f"{number} {ODD}"] for number in range(8)]
    assert {result["outputs"][0]["finish_reason"] for result in results[:8]} == {"stop"}


@pytest.mark.vllm_engine(front="async")
def test_n_6(vllm_engine: AsyncEngine) -> None:
    scripts = [Script.text(f"choice {number} ", end=number % 2 == 0) for number in range(6)]
    (stream,) = vllm_engine.generate(
        scripts[0].prompt("Hello", *scripts[1:]),
        {"max_tokens": 12, "n": 6},
        output_kind="final_only",
    )
    outputs = sorted(stream[-1]["outputs"], key=lambda output: output["index"])
    assert [output["text"] for output in outputs] == ["choice 0 ", "choice 1 cho"] + [
        text
        for pair in (("choice 2 ", "choice 3 cho"), ("choice 4 ", "choice 5 cho"))
        for text in pair
    ]
    assert [output["finish_reason"] for output in outputs] == ["stop", "length"] * 3


def test_probabilities(vllm_engine: Engine) -> None:
    script = Script.text("a").then(Script.either({"b": 0.75, "c": 0.25})).then("d")
    (result,) = vllm_engine.generate(
        script.prompt(), {"max_tokens": 9, "temperature": 0, "logprobs": 2}
    )
    assert texts(result) == ["abd"]
    step = (result["outputs"][0]["logprobs"] or [])[1] or {}
    probabilities = {token: math.exp(value) for token, value in step.items()}
    assert probabilities == pytest.approx({"98": 0.75, "99": 0.25}, rel=1e-4)


def test_ill_formed_utf8(vllm_engine: Engine) -> None:
    (result,) = vllm_engine.generate(Script.raw(b"a\xf0\x9f\x98b").prompt(), {"max_tokens": 9})
    assert texts(result) == ["a\ufffdb"] and result["outputs"][0]["token_ids"][:5] == list(
        b"a\xf0\x9f\x98b"
    )


def test_stop_string_over_tokens(vllm_engine: Engine) -> None:
    (result,) = vllm_engine.generate(
        Script.text("one END two").prompt(), {"max_tokens": 20, "stop": [" END"]}
    )
    assert texts(result) == ["one"] and result["outputs"][0]["stop_reason"] == " END"


@pytest.mark.vllm_engine(structured_output_backend="xgrammar")
def test_grammar(vllm_engine: Engine) -> None:
    sampling = {"max_tokens": 30, "structured_outputs": {"json": SCHEMA}}
    (result,) = vllm_engine.generate(Script.text('{"a": true}').prompt(), sampling)
    assert texts(result) == ['{"a": true}']
    with pytest.raises(ScriptError, match=r"""at token 6, after '{"a": ', wanted 'm', .*forbids"""):
        vllm_engine.generate(Script.text('{"a": maybe}').prompt(), sampling)


def check_six_scripts(vllm_engine: AsyncEngine) -> None:
    prompts = [Script.text(f"answer {number}").prompt(f"prompt {number}") for number in range(6)]
    streams = vllm_engine.generate(prompts, {"max_tokens": 20})
    assert [texts(stream[-1]) for stream in streams] == [
        [f"answer {number}"] for number in range(6)
    ]


@pytest.mark.vllm_engine(front="async", executor="mp", tp=2)
def test_tp2(vllm_engine: AsyncEngine) -> None:
    check_six_scripts(vllm_engine)


@pytest.mark.vllm_engine(front="async", executor="mp", pp=2)
def test_pp2(vllm_engine: AsyncEngine) -> None:
    check_six_scripts(vllm_engine)


@pytest.mark.vllm_engine(front="async", dp=2)
def test_dp2(vllm_engine: AsyncEngine) -> None:
    check_six_scripts(vllm_engine)


def test_http_chat(vllm_server: Server) -> None:
    scripts = [Script.text(f"{number} {ODD}") for number in range(3)]
    messages = [{"role": "user", "content": scripts[0].prompt("Hello", *scripts[1:])}]
    whole = vllm_server.chat(messages, n=3, max_tokens=60)["choices"]
    assert [choice["message"]["content"] for choice in whole] == [
        f"{number} {ODD}" for number in range(3)
    ]
    streamed = ["", "", ""]
    for chunk in vllm_server.stream_chat(messages, n=3, max_tokens=60):
        for choice in chunk["choices"]:
            streamed[choice["index"]] += choice["delta"].get("content") or ""
    assert streamed == [f"{number} {ODD}" for number in range(3)]


def test_http_completions(vllm_server: Server) -> None:
    prompts = [
        Script.text(f"{number} a").prompt("Hello", Script.text(f"{number} b"))
        for number in range(3)
    ]
    body = {"model": vllm_server.model, "prompt": prompts, "n": 2, "max_tokens": 20}
    answer = vllm_server.post("/v1/completions", body).json()
    assert [choice["text"] for choice in answer["choices"]] == [
        "0 a",
        "0 b",
        "1 a",
        "1 b",
        "2 a",
        "2 b",
    ]


def test_http_responses(vllm_server: Server) -> None:
    body = {
        "model": vllm_server.model,
        "input": Script.text(ODD).prompt("Hello"),
        "max_output_tokens": 60,
    }
    response = vllm_server.post("/v1/responses", body)
    if response.status_code == 404:
        pytest.skip("this vLLM has no /v1/responses")
    (message,) = response.json()["output"]
    assert message["content"][0]["text"] == ODD


def test_http_200_at_once(vllm_server: Server) -> None:
    def ask(number: int) -> tuple[str, str]:
        expected = f"{number} {ODD}"
        body = {
            "model": vllm_server.model,
            "prompt": Script.text(expected).prompt(),
            "max_tokens": 60,
        }
        return expected, vllm_server.post("/v1/completions", body, timeout=100).json()["choices"][
            0
        ]["text"]

    with ThreadPoolExecutor(50) as pool:
        pairs = list(pool.map(ask, range(200)))
    assert [text for _, text in pairs] == [expected for expected, _ in pairs]
