"""Kinds of models beside the dense decoder: it starts, answers, and a script is said."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import Engine, Script

pytestmark = pytest.mark.vllm_engine(generation=["V0", "V1"])
LONG = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
HEARD: dict[str, Any] = {"audio": {"seconds": 1.5}}
TRANSCRIBE = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"


def answers(engine: Engine, *prompts: Any) -> list[list[int]]:
    return [result["outputs"][0]["token_ids"] for result in engine.generate(list(prompts), LONG)]


def says(engine: Engine, prompt: Any) -> None:
    (result,) = engine.generate(prompt, {"max_tokens": 20})
    assert result["outputs"][0]["text"] == "as it was told"


SAID = Script.text("as it was told")


@pytest.mark.vllm_engine(model="experts")
def test_mixture_of_experts(vllm_engine: Engine) -> None:
    one, other = answers(vllm_engine, "Hello, you", "Good bye")
    assert len(one) == len(other) == 12 and one != other


@pytest.mark.vllm_engine(model="experts")
def test_mixture_of_experts_with_a_script(vllm_engine: Engine) -> None:
    says(vllm_engine, SAID.prompt("Hello"))


@pytest.mark.vllm_engine(model="mamba")
def test_state_space(vllm_engine: Engine) -> None:
    one, other = answers(vllm_engine, "Hello, you", "Good bye")
    assert len(one) == len(other) == 12 and one != other


@pytest.mark.vllm_engine(model="mamba")
def test_state_space_with_a_script(vllm_engine: Engine) -> None:
    says(vllm_engine, SAID.prompt("Hello"))


@pytest.mark.vllm_engine(model="speech")
def test_speech(vllm_engine: Engine) -> None:
    (tokens,) = answers(vllm_engine, {"prompt": TRANSCRIBE, **HEARD})
    assert len(tokens) == 12


@pytest.mark.vllm_engine(model="speech")
def test_speech_with_a_script(vllm_engine: Engine) -> None:
    says(vllm_engine, {"prompt": SAID.prompt(TRANSCRIBE), **HEARD})
