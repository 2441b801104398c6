"""vllm#40314: a response to a request without tools has no tool call."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Script, Server

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.mark.vllm_case("vllm-40314")
@pytest.mark.vllm_engine(
    front="serve",
    generation="V1",
    server_options={"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
)
def test_no_tools(vllm_server: Server, vllm_at_work: AtWork) -> None:
    def items(text: str) -> list[str]:
        answer = vllm_server.respond(Script.text(text).prompt("How do tool calls look?"), max_output_tokens=120)
        return [item["type"] for item in answer["output"]]

    vllm_at_work("a text is a message", items("Like this.") == ["message"])
    kinds = items(CALL)
    assert kinds == ["message"], f"without tools the answer has the items {kinds}"
    vllm_server.check()
