"""vllm#53269: a streamed call that is cut ends with finish_reason length."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Script, Server

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.mark.vllm_case("vllm-53269")
@pytest.mark.vllm_requires(vllm=">0.8.5", cause="failure")  # before, no streamed call has a last chunk
@pytest.mark.vllm_engine(
    front="serve",
    generation="V1",
    server_options={"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
)
def test_cut_call(vllm_server: Server, vllm_at_work: AtWork) -> None:
    messages: list[dict[str, str]] = [{"role": "user", "content": Script.text(CALL).prompt("The weather in Paris?")}]

    def reason(tokens: int) -> str | None:
        chunks = vllm_server.stream_chat(messages, max_tokens=tokens, tools=[TOOL])
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        names = [call["function"].get("name") for choice in choices for call in choice["delta"].get("tool_calls") or []]
        vllm_at_work("a call is streamed", "weather" in names)
        return choices[-1]["finish_reason"]

    whole = reason(100)
    vllm_at_work("a whole call ends with tool_calls", whole == "tool_calls")
    cut = reason(45)
    assert cut == "length", f"a call that is cut ends with finish_reason {cut}"
    vllm_server.check()
