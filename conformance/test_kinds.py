"""Kinds of models other than dense decoders: the engine starts, answers, and follows a script."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import Engine, Script

pytestmark = pytest.mark.vllm_engine(generation=["V0", "V1"])
LONG = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
AUDIO: dict[str, Any] = {"audio": {"seconds": 1.5}}
TRANSCRIBE = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"


def answers(engine: Engine, *prompts: Any) -> list[list[int]]:
    return [result["outputs"][0]["token_ids"] for result in engine.generate(list(prompts), LONG)]


TEXT = "as scripted"
SCRIPT = Script.text(TEXT)


def follows_script(engine: Engine, prompt: Any) -> None:
    (result,) = engine.generate(prompt, {"max_tokens": 20})
    assert result["outputs"][0]["text"] == TEXT


@pytest.mark.vllm_engine(model="experts")
def test_mixture_of_experts(vllm_engine: Engine) -> None:
    first, second = answers(vllm_engine, "Hello, you", "Good bye")
    assert len(first) == len(second) == 12 and first != second


@pytest.mark.vllm_engine(model="experts")
def test_mixture_of_experts_with_a_script(vllm_engine: Engine) -> None:
    follows_script(vllm_engine, SCRIPT.prompt("Hello"))


@pytest.mark.vllm_engine(model="mamba")
def test_state_space(vllm_engine: Engine) -> None:
    first, second = answers(vllm_engine, "Hello, you", "Good bye")
    assert len(first) == len(second) == 12 and first != second


@pytest.mark.vllm_engine(model="mamba")
def test_state_space_with_a_script(vllm_engine: Engine) -> None:
    follows_script(vllm_engine, SCRIPT.prompt("Hello"))


@pytest.mark.vllm_engine(model="speech")
def test_speech(vllm_engine: Engine) -> None:
    (tokens,) = answers(vllm_engine, {"prompt": TRANSCRIBE, **AUDIO})
    assert len(tokens) == 12


@pytest.mark.vllm_engine(model="speech")
def test_speech_with_a_script(vllm_engine: Engine) -> None:
    follows_script(vllm_engine, {"prompt": SCRIPT.prompt(TRANSCRIBE), **AUDIO})
