"""vllm#29947: /v1/responses must stream a tool call as such."""

from __future__ import annotations

import json

import pytest

from pytest_vllm_regress import AtWork, Script, Server

TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.mark.vllm_case("vllm-29947")
@pytest.mark.vllm_requires(vllm=">=0.11.1")  # the first whose tool parsers read answers at this address
@pytest.mark.vllm_engine(
    front="serve",
    generation="V1",
    server_options={"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
)
def test_streamed_call(vllm_server: Server, vllm_at_work: AtWork) -> None:
    prompt = Script.text(CALL).prompt("The weather in Paris?")
    body = {"model": vllm_server.model, "input": prompt, "max_output_tokens": 150, "tools": [TOOL]}
    whole = vllm_server.post("/v1/responses", body).json()
    vllm_at_work("without streaming it is a call", [item["type"] for item in whole["output"]] == ["function_call"])
    lines = vllm_server.post("/v1/responses", {**body, "stream": True}).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    kinds = [event["item"]["type"] for event in events if event["type"] == "response.output_item.added"]
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert kinds == ["function_call"], f"the call is streamed as {kinds} with the text {text!r}"
    vllm_server.check()
