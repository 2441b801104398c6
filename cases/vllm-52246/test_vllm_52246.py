"""vllm#52246: /v1/messages must answer wrong requests with a 4xx status."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Script, Server

TOOL = {"name": "weather", "input_schema": {"type": "object", "properties": {}}}
WRONG = {
    "a negative temperature is": {"temperature": -1},
    "too many tokens are": {"max_tokens": 1_000_000},
    "an unknown tool is": {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "nope"}},
}


@pytest.mark.vllm_case("vllm-52246")
@pytest.mark.vllm_requires(vllm=">=0.11.1")  # the first with /v1/messages
@pytest.mark.vllm_engine(
    front="serve",
    generation="V1",
    server_options={"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
)
@pytest.mark.parametrize("what", WRONG)
def test_wrong_request(vllm_server: Server, vllm_at_work: AtWork, what: str) -> None:
    messages = [{"role": "user", "content": Script.text("Paris.").prompt("Capital of France?")}]
    body = {"model": vllm_server.model, "messages": messages, "max_tokens": 20}
    plain = vllm_server.post("/v1/messages", body)
    vllm_at_work("a right request is answered", plain.json()["content"][0]["text"] == "Paris.")
    answer = vllm_server.post("/v1/messages", {**body, **WRONG[what]})  # type: ignore[dict-item]
    assert 400 <= answer.status_code < 500, f"{what} answered with {answer.status_code}: {answer.text[:500]}"
    vllm_server.check()
