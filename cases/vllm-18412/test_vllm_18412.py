"""vllm#18412: the first delta of a call has its id."""

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


@pytest.mark.vllm_case("vllm-18412")
@pytest.mark.vllm_engine(
    front="serve",
    generation="V1",
    server_options={"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
)
def test_id(vllm_server: Server, vllm_at_work: AtWork) -> None:
    messages: list[dict[str, str]] = [{"role": "user", "content": "The weather in Paris?"}]
    choice = {"type": "function", "function": {"name": "weather"}}
    chunks = vllm_server.stream_chat(messages, max_tokens=40, tools=[TOOL], tool_choice=choice)
    calls = [
        call for chunk in chunks for choice in chunk["choices"] for call in choice["delta"].get("tool_calls") or []
    ]
    vllm_at_work("a call is streamed", bool(calls) and calls[0]["function"]["name"] == "weather")
    number = calls[0].get("id")
    assert number, f"the first delta of the call has the id {number}"
    vllm_server.check()
