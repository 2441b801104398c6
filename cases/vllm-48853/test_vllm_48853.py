"""vllm#48853: nothing of the prompt is part of the answer."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

PROMPT, ANSWER = ["Hello world "], ["\U0001f336", " red hot"]


@pytest.mark.vllm_case("vllm-48853")
def test_prompt_ends_inside_a_character(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    asked: dict[str, Any] = {"tokenizer": vllm_model_path, "prompt": PROMPT, "answer": ANSWER}
    vllm_at_work("a whole answer is streamed", vllm_probe("streamed_text", held_back=0, **asked) == "".join(ANSWER))
    text = vllm_probe("streamed_text", held_back=2, **asked)
    assert text == "".join(ANSWER), f"streams the prompt too: {text!r}"
