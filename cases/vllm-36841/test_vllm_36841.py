"""vllm#36841: a required tool call that max_tokens cuts is an answer, not an error."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Server

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.mark.vllm_case("vllm-36841")
@pytest.mark.vllm_requires(vllm=">=0.8.4")  # earlier releases refuse required calls, or their schema
@pytest.mark.vllm_engine(
    front="serve",
    generation="V1",
    server_options={"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
)
def test_cut_call(vllm_server: Server, vllm_at_work: AtWork) -> None:
    messages = [{"role": "user", "content": "The weather in Paris?"}]
    body = {"model": vllm_server.model, "messages": messages, "max_tokens": 3, "ignore_eos": True}
    plain = vllm_server.post("/v1/chat/completions", body)
    vllm_at_work("a text is cut by max_tokens", plain.json()["choices"][0]["finish_reason"] == "length")
    cut = vllm_server.post("/v1/chat/completions", {**body, "tools": [TOOL], "tool_choice": "required"})
    assert cut.status_code == 200, f"a required call that is cut is answered with {cut.status_code}: {cut.text[:500]}"
    vllm_server.check()
