"""vllm#25223: a call of the conversation may have empty arguments."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Script, Server


def conversation(arguments: str) -> list[dict[str, object]]:
    call = {"id": "call-1", "type": "function", "function": {"name": "now", "arguments": arguments}}
    return [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": "12:00"},
        {"role": "user", "content": Script.text("Noon.").prompt("And in words?")},
    ]


@pytest.mark.vllm_case("vllm-25223")
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_empty_arguments(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body = {"model": vllm_server.model, "max_tokens": 10}
    plain = vllm_server.post("/v1/chat/completions", {**body, "messages": conversation("{}")})
    vllm_at_work("an empty object is accepted", plain.json()["choices"][0]["message"]["content"] == "Noon.")
    answer = vllm_server.post("/v1/chat/completions", {**body, "messages": conversation("")})
    assert answer.status_code == 200, (
        f"a call with empty arguments is answered with {answer.status_code}: {answer.text[:300]}"
    )
    vllm_server.check()
