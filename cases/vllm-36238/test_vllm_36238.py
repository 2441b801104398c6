"""vllm#36238: reasoning_effort may be none."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Script, Server


@pytest.mark.vllm_case("vllm-36238")
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_effort(vllm_server: Server, vllm_at_work: AtWork) -> None:
    messages = [{"role": "user", "content": Script.text("four").prompt("2 + 2?")}]
    body = {"model": vllm_server.model, "messages": messages, "max_tokens": 20}
    low = vllm_server.post("/v1/chat/completions", {**body, "reasoning_effort": "low"})
    vllm_at_work("low is accepted", low.json()["choices"][0]["message"]["content"] == "four")
    none = vllm_server.post("/v1/chat/completions", {**body, "reasoning_effort": "none"})
    assert none.status_code == 200, f"reasoning_effort none is answered with {none.status_code}: {none.text[:400]}"
    vllm_server.check()
