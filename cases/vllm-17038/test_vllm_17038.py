"""vllm-project/vllm#17038: a chat request without messages gets status 500"""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Server

pytestmark = pytest.mark.vllm_case("vllm-17038")


@pytest.mark.vllm_engine(front="serve")
def test_vllm_17038(vllm_server: Server, vllm_at_work: AtWork) -> None:
    """Send a conversation with a message and one without."""
    body = {"model": vllm_server.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    right = vllm_server.post("/v1/chat/completions", {**body, "ignore_eos": True})
    answered = right.status_code == 200 and right.json()["choices"][0]["message"]["content"]
    vllm_at_work("a conversation is answered", answered)
    answer = vllm_server.post("/v1/chat/completions", {**body, "messages": []})
    assert answer.status_code < 500, f"no messages: status {answer.status_code}: {answer.text[:500]}"
    vllm_server.check()  # the server still works
