"""vllm#26225: a batch with a reasoning parser must separate the reasoning from the answer."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe, Script


@pytest.mark.vllm_case("vllm-26225")
@pytest.mark.vllm_requires(vllm=">=0.8")  # the first whose run-batch has the option
def test_reasoning_in_a_batch(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    prompt = Script.text("<think>one two</think>three").prompt("2 + 1?")
    body = {"model": vllm_model_path, "messages": [{"role": "user", "content": prompt}], "max_tokens": 60}
    request = {"custom_id": "sum", "method": "POST", "url": "/v1/chat/completions", "body": body}
    options = ["--max-model-len", "512", "--reasoning-parser", "deepseek_r1"]
    batch = vllm_probe("batch_files:run", model=vllm_model_path, lines=[request], options=options)
    (answer,) = batch["answers"]
    vllm_at_work("the request of the batch is answered", answer["response"]["status_code"] == 200)
    content = answer["response"]["body"]["choices"][0]["message"]["content"]
    assert content == "three", f"expected the answer after the reasoning, got {content!r}"
