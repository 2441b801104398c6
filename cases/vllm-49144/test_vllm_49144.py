"""vllm#49144: logprobs that are no number must be answered with a 4xx status."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Server


@pytest.mark.vllm_case("vllm-49144")
@pytest.mark.vllm_requires(vllm=">=0.8")  # the first whose V1 engine has log-probabilities of the prompt
@pytest.mark.vllm_engine(front="serve", generation="V1")
@pytest.mark.parametrize(
    ("endpoint", "field"), [("completions", "prompt_logprobs"), ("chat/completions", "top_logprobs")]
)
def test_no_number(vllm_server: Server, vllm_at_work: AtWork, endpoint: str, field: str) -> None:
    prompt: dict[str, Any] = (
        {"prompt": "Hello"}
        if endpoint == "completions"
        else {"messages": [{"role": "user", "content": "Hello"}], "logprobs": True}
    )
    body = {"model": vllm_server.model, "max_tokens": 4, **prompt}
    number = vllm_server.post(f"/v1/{endpoint}", {**body, field: 2})
    vllm_at_work("a number is accepted", number.status_code == 200 and number.json()["choices"])
    answer = vllm_server.post(f"/v1/{endpoint}", {**body, field: "many"})
    assert 400 <= answer.status_code < 500, (
        f"{field} of 'many' is answered with {answer.status_code}: {answer.text[:500]}"
    )
    vllm_server.check()
