"""vllm#51796: a regex with a NUL must be rejected."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Server


@pytest.mark.vllm_case("vllm-51796")
@pytest.mark.vllm_requires(vllm=">=0.11")  # earlier releases have no structured_outputs and ignore the key
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_nul(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body = {"model": vllm_server.model, "prompt": "Hello", "max_tokens": 8}
    obeyed = vllm_server.post("/v1/completions", {**body, "structured_outputs": {"regex": "ab"}})
    vllm_at_work("a regex is obeyed", obeyed.status_code == 200 and obeyed.json()["choices"][0]["text"] == "ab")
    answer = vllm_server.post("/v1/completions", {**body, "structured_outputs": {"regex": "a\x00b"}})
    what = f" and the text {answer.json()['choices'][0]['text']!r}" if answer.status_code == 200 else answer.text
    assert answer.status_code == 400, f"a regex with a NUL is answered with {answer.status_code}{what}"
    vllm_server.check()
