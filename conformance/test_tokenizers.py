"""Tokenizers: sentencepiece with byte fallback, and one that has no fast version."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AsyncEngine, Engine, Script, Server

pytestmark = pytest.mark.vllm_engine(generation=["V0", "V1"])
ODD = "Gr\u00fc\u00dfe \U0001f600 [1]\n"
LONG = {"max_tokens": 24, "ignore_eos": True, "temperature": 0}


@pytest.mark.vllm_engine(model="sentencepiece")
def test_byte_fallback(vllm_engine: Engine) -> None:
    (result,) = vllm_engine.generate(Script.text(ODD).prompt("Hello"), {"max_tokens": 40})
    assert result["outputs"][0]["text"] == ODD


@pytest.mark.vllm_engine(model="sentencepiece", front="async")
def test_byte_fallback_in_a_stream(vllm_engine: AsyncEngine) -> None:
    (stream,) = vllm_engine.generate(Script.text(ODD).prompt("Hello"), {"max_tokens": 40}, output_kind="delta")
    assert "".join(part["outputs"][0]["text"] for part in stream) == ODD


@pytest.mark.vllm_engine(model="sentencepiece")
def test_stop_string(vllm_engine: Engine) -> None:
    (result,) = vllm_engine.generate(Script.text("one END two").prompt(), {"max_tokens": 20, "stop": [" END"]})
    assert result["outputs"][0]["text"] == "one" and result["outputs"][0]["stop_reason"] == " END"


@pytest.mark.vllm_engine(model="sentencepiece")
def test_there_and_back(vllm_server: Server) -> None:
    tokens = vllm_server.tokenize("the one \u00fc")
    assert vllm_server.detokenize(tokens).replace("<s>", "").strip() == "the one \u00fc"


@pytest.mark.vllm_engine(model="slow-tokenizer")
def test_slow(vllm_engine: Engine) -> None:
    one, same = vllm_engine.generate(["Hello", "Hello"], LONG)
    assert len(one["outputs"][0]["token_ids"]) == 24 and one["outputs"][0]["text"]
    assert one["outputs"][0] == same["outputs"][0]


@pytest.mark.vllm_engine(model="slow-tokenizer", front="async")
def test_slow_in_a_stream(vllm_engine: AsyncEngine) -> None:
    (parts,) = vllm_engine.generate("Hello", LONG, output_kind="delta")
    (whole,) = vllm_engine.generate("Hello", LONG, output_kind="final_only")
    assert "".join(part["outputs"][0]["text"] for part in parts) == whole[-1]["outputs"][0]["text"]


@pytest.mark.vllm_engine(model="slow-tokenizer")
def test_slow_chat(vllm_server: Server) -> None:
    (choice,) = vllm_server.chat([{"role": "user", "content": "Hello"}], max_tokens=8, ignore_eos=True)["choices"]
    assert choice["finish_reason"] == "length" and choice["message"]["content"]
