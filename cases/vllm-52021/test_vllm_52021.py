"""vllm#52021: /v1/messages must obey disable_parallel_tool_use."""

from __future__ import annotations

import contextlib

import pytest

from pytest_vllm_regress import AtWork, Script, ScriptError, Server

TOOL = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "CITY"}}\n</tool_call>'


@pytest.mark.vllm_case("vllm-52021")
@pytest.mark.vllm_requires(vllm=">=0.11.1")  # the first with /v1/messages
@pytest.mark.vllm_engine(
    front="serve",
    generation="V1",
    server_options={"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
)
def test_one_call(vllm_server: Server, vllm_at_work: AtWork) -> None:
    def calls(**choice: bool) -> int:
        text = "\n".join(CALL.replace("CITY", city) for city in ("Paris", "Rome"))
        messages = [{"role": "user", "content": Script.text(text).prompt("The weather in Paris and Rome?")}]
        body = {"model": vllm_server.model, "messages": messages, "max_tokens": 150, "tools": [TOOL]}
        answer = vllm_server.client.post(
            "/v1/messages", json={**body, "tool_choice": {"type": "auto", **choice}}, timeout=60
        )
        return sum(block["type"] == "tool_use" for block in answer.json()["content"])

    vllm_at_work("the model calls twice", calls() == 2)
    count = calls(disable_parallel_tool_use=True)
    with contextlib.suppress(ScriptError):  # a server that obeys ends the answer before the script does
        vllm_server.check()
    assert count == 1, f"with disable_parallel_tool_use the answer has {count} calls"
