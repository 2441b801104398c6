"""transformers 5.23: a prompt of text with an image must be answered."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AsyncEngine, AtWork

pytestmark = pytest.mark.vllm_case("transformers-5-23")

IMAGE = {"size": [56, 56]}
TEXT = "<|vision_start|><|image_pad|><|vision_end|>What is this?"


@pytest.mark.vllm_engine(front="async", generation="V1", model="vision")
def test_text_with_an_image(vllm_engine: AsyncEngine, vllm_leg: str, vllm_at_work: AtWork) -> None:
    sampling = {"max_tokens": 4, "ignore_eos": True}
    (plain,) = vllm_engine.generate("What is this?", sampling)
    vllm_at_work("a prompt without an image is answered", plain[-1]["finished"])
    (answer,) = vllm_engine.generate({"prompt": TEXT, "image": IMAGE} if vllm_leg == "subject" else "Hello", sampling)
    assert answer[-1]["finished"], f"the answer ends with {answer[-1]}"
    vllm_engine.check()
