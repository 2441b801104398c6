"""Tokenizers:

SentencePiece with byte fallback, a slow one, and Mistral's own with its chat format and tool calls.
"""

from __future__ import annotations

import json

import pytest

from pytest_vllm_regress import AsyncEngine, Engine, Script, Server

pytestmark = pytest.mark.vllm_engine(generation=["V0", "V1"])
ODD = "Gr\u00fc\u00dfe \U0001f600 [1]\n"
LONG = {"max_tokens": 24, "ignore_eos": True, "temperature": 0}
MISTRAL_TOOLS = {"enable_auto_tool_choice": True, "tool_call_parser": "mistral"}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "", "parameters": {"type": "object"}},
}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.mark.vllm_engine(model="sentencepiece")
def test_byte_fallback(vllm_engine: Engine) -> None:
    (result,) = vllm_engine.generate(Script.text(ODD).prompt("Hello"), {"max_tokens": 40})
    assert result["outputs"][0]["text"] == ODD


@pytest.mark.vllm_engine(model="sentencepiece", front="async")
def test_byte_fallback_in_a_stream(vllm_engine: AsyncEngine) -> None:
    (stream,) = vllm_engine.generate(
        Script.text(ODD).prompt("Hello"), {"max_tokens": 40}, output_kind="delta"
    )
    assert "".join(part["outputs"][0]["text"] for part in stream) == ODD


@pytest.mark.vllm_engine(model="sentencepiece")
def test_stop_string(vllm_engine: Engine) -> None:
    (result,) = vllm_engine.generate(
        Script.text("one END two").prompt(), {"max_tokens": 20, "stop": [" END"]}
    )
    assert result["outputs"][0]["text"] == "one" and result["outputs"][0]["stop_reason"] == " END"


@pytest.mark.vllm_engine(model="sentencepiece")
def test_there_and_back(vllm_server: Server) -> None:
    tokens = vllm_server.tokenize("the one \u00fc")
    assert vllm_server.detokenize(tokens).replace("<s>", "").strip() == "the one \u00fc"


@pytest.mark.vllm_engine(model="slow-tokenizer")
def test_slow(vllm_engine: Engine) -> None:
    first, second = vllm_engine.generate(["Hello", "Hello"], LONG)
    assert len(first["outputs"][0]["token_ids"]) == 24 and first["outputs"][0]["text"]
    assert first["outputs"][0] == second["outputs"][0]


@pytest.mark.vllm_engine(model="slow-tokenizer", front="async")
def test_slow_in_a_stream(vllm_engine: AsyncEngine) -> None:
    (parts,) = vllm_engine.generate("Hello", LONG, output_kind="delta")
    (whole,) = vllm_engine.generate("Hello", LONG, output_kind="final_only")
    assert "".join(part["outputs"][0]["text"] for part in parts) == whole[-1]["outputs"][0]["text"]


@pytest.mark.vllm_engine(model="slow-tokenizer")
def test_slow_chat(vllm_server: Server) -> None:
    (choice,) = vllm_server.chat(
        [{"role": "user", "content": "Hello"}], max_tokens=8, ignore_eos=True
    )["choices"]
    assert choice["finish_reason"] == "length" and choice["message"]["content"]


@pytest.mark.vllm_engine(model="mistral")
def test_mistral(vllm_engine: Engine) -> None:
    first, second = vllm_engine.generate(["Hello", "Hello"], LONG)
    assert len(first["outputs"][0]["token_ids"]) == 24 and first["outputs"][0]["text"]
    assert first["outputs"][0] == second["outputs"][0]


@pytest.mark.vllm_engine(model="mistral")
def test_mistral_with_a_script(vllm_engine: Engine) -> None:
    (result,) = vllm_engine.generate(Script.text(ODD).prompt("Hello"), {"max_tokens": 40})
    assert result["outputs"][0]["text"] == ODD


@pytest.mark.vllm_engine(model="mistral", front="async")
def test_mistral_in_a_stream(vllm_engine: AsyncEngine) -> None:
    (stream,) = vllm_engine.generate(
        Script.text(ODD).prompt("Hello"), {"max_tokens": 40}, output_kind="delta"
    )
    assert "".join(part["outputs"][0]["text"] for part in stream) == ODD


@pytest.mark.vllm_engine(model="mistral", structured_output_backend="xgrammar")
def test_mistral_schema(vllm_engine: Engine) -> None:
    sampling = {"max_tokens": 30, "structured_outputs": {"json": SCHEMA}}
    (result,) = vllm_engine.generate("Hello", sampling)
    assert json.loads(result["outputs"][0]["text"]) in ({"a": True}, {"a": False})


@pytest.mark.vllm_engine(model="mistral")
def test_mistral_there_and_back(vllm_server: Server) -> None:
    tokens = vllm_server.tokenize("the one \u00fc")
    assert vllm_server.detokenize(tokens).removeprefix("<s>") == "the one \u00fc"


@pytest.mark.vllm_engine(model="mistral")
def test_mistral_tokens_of_a_conversation(vllm_server: Server) -> None:
    begin, open_, *text, close = vllm_server.tokenize([{"role": "user", "content": "Hi"}])
    assert (begin, open_, close) == (1, 3, 4) and len(text) == 2  # <s>, [INST], [/INST]


@pytest.mark.vllm_engine(model="mistral")
def test_mistral_chat(vllm_server: Server) -> None:
    (answer,) = vllm_server.answers(
        [{"role": "user", "content": "Hello"}], max_tokens=8, ignore_eos=True
    )
    assert answer.finish_reason == "length" and answer.content


@pytest.mark.vllm_engine(model="mistral")
@pytest.mark.parametrize("way", ["whole", "stream"])
def test_mistral_chat_with_a_script(vllm_server: Server, way: str) -> None:
    system, user = (
        {"role": "system", "content": "Be."},
        {"role": "user", "content": Script.text(ODD).prompt("Hello")},
    )
    (answer,) = vllm_server.answers([system, user], stream=way == "stream", max_tokens=60)
    assert answer.content == ODD and answer.finish_reason == "stop"


@pytest.mark.vllm_engine(model="mistral", server_options=MISTRAL_TOOLS)
@pytest.mark.parametrize("way", ["whole", "stream"])
def test_mistral_tool_call(vllm_server: Server, way: str) -> None:
    call = json.dumps([{"name": "weather", "arguments": {"city": "K\u00f6ln"}}])
    messages = [{"role": "user", "content": Script.text(f"[TOOL_CALLS]{call}").prompt("Weather?")}]
    (answer,) = vllm_server.answers(
        messages, stream=way == "stream", tools=[WEATHER], max_tokens=120
    )
    (tool_call,) = answer.tool_calls
    assert tool_call.name == "weather" and json.loads(tool_call.arguments) == {"city": "K\u00f6ln"}
