"""vllm#48853: the answer must not contain part of the prompt."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

PROMPT, ANSWER = ["Hello world "], ["\U0001f336", " red hot"]


# Before 0.8.5 the detokenizer loses the character altogether, which is another failure.
@pytest.mark.vllm_requires(vllm=">=0.8.5")
@pytest.mark.vllm_case("vllm-48853")
def test_prompt_ends_inside_a_character(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "prompt": PROMPT, "answer": ANSWER}
    vllm_at_work(
        "an answer is streamed", vllm_probe("frontend:streamed_text", held_back=0, **options) == "".join(ANSWER)
    )
    text = vllm_probe("frontend:streamed_text", held_back=2, **options)
    assert text == "".join(ANSWER), f"streams the prompt too: {text!r}"
