"""vllm#24948: prompt_logprobs=-1 means the whole vocabulary and must be accepted."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Server

# The tiny model's vocabulary is smaller than this; vLLM's own default limit is 20.
pytestmark = pytest.mark.vllm_engine(front="serve", extra={"max_logprobs": 400})


def ask(server: Server, prompt_logprobs: int) -> int:
    """Return the number of alternatives for the last position of the prompt."""
    answer = server.post(
        "/v1/completions",
        {"model": server.model, "prompt": "Hello", "max_tokens": 2, "prompt_logprobs": prompt_logprobs},
    )
    assert answer.status_code == 200, f"expected 200, got {answer.status_code}: {answer.text[:500]}"
    server.check()
    positions = answer.json()["choices"][0]["prompt_logprobs"]
    return len(positions[-1])


@pytest.mark.vllm_case("vllm-24948")
def test_whole_vocabulary(vllm_server: Server, vllm_at_work: AtWork) -> None:
    vllm_at_work("prompt_logprobs=1 is answered", ask(vllm_server, 1) >= 1)
    assert ask(vllm_server, -1) > 200


@pytest.mark.vllm_case("vllm-24948", variant="number")
def test_a_few(vllm_server: Server, vllm_at_work: AtWork) -> None:
    vllm_at_work("prompt_logprobs=1 is answered", ask(vllm_server, 1) >= 1)
    assert ask(vllm_server, 2) >= 2
