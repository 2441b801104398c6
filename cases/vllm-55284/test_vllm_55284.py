"""vllm-project/vllm#55284: a stream of /v1/responses breaks off where a tool call ends within a chunk"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Script, Server

TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
CHUNK = 45  # tokens; one is a character


@pytest.mark.vllm_case("vllm-55284")
@pytest.mark.vllm_engine(
    front="serve",
    generation="V1",
    max_model_len=1024,
    extra={"stream_interval": CHUNK},
    server_options={"enable_auto_tool_choice": True, "tool_call_parser": "qwen3_coder"},
)
def test_text_after_a_call_in_one_chunk(vllm_server: Server, vllm_at_work: AtWork) -> None:
    """A stream with a call and text after it is completed, wherever the chunks are cut."""
    whole = vllm_server.post("/v1/responses", request(vllm_server, 0)).json()
    called = [item["arguments"] for item in whole["output"] if item["type"] == "function_call"]
    vllm_at_work("the tool is called", called and "Paris" in called[0])
    plain = {**request(vllm_server, 0), "input": Script.text("No tool is needed for that.").prompt("Weather?")}
    vllm_at_work("a stream without a call is complete", completed(vllm_server, plain))
    for shift in range(12, 28, 2):
        assert completed(vllm_server, request(vllm_server, shift)), f"a stream was not completed ({shift})"
    vllm_server.check()


def request(server: Server, shift: int) -> dict[str, Any]:
    """Return a request whose scripted answer is a call, moved by ``shift`` characters, and text after it."""
    text = f"Let me look{'.' * shift} {CALL} And that is all there is."
    return {
        "model": server.model,
        "input": Script.text(text).prompt("Weather?"),
        "tools": [TOOL],
        "max_output_tokens": 300,
    }


def completed(server: Server, body: dict[str, Any]) -> bool:
    """Return whether the streamed answer ends as it should."""
    answer = server.post("/v1/responses", {**body, "stream": True})
    assert answer.status_code == 200, f"expected status 200, got {answer.status_code}: {answer.text[:500]}"
    return "event: response.completed" in answer.text
