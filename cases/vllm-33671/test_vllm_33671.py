"""vllm#33671: /v1/messages must accept earlier answers that have thinking."""

from __future__ import annotations

import httpx
import pytest

from pytest_vllm_regress import AtWork, Script, Server


@pytest.mark.vllm_case("vllm-33671")
@pytest.mark.vllm_requires(vllm=">=0.11.1")  # the first with /v1/messages
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_thinking(vllm_server: Server, vllm_at_work: AtWork) -> None:
    text = {"type": "text", "text": "Paris."}
    thinking = {"type": "thinking", "thinking": "France, so Paris.", "signature": "none"}

    def ask(*blocks: dict[str, str]) -> httpx.Response:
        messages = [
            {"role": "user", "content": "Capital of France?"},
            {"role": "assistant", "content": list(blocks)},
            {"role": "user", "content": Script.text("Rome.").prompt("And of Italy?")},
        ]
        return vllm_server.post("/v1/messages", {"model": vllm_server.model, "messages": messages, "max_tokens": 20})

    vllm_at_work("an earlier text is accepted", ask(text).json()["content"][0]["text"] == "Rome.")
    answer = ask(thinking, text)
    assert answer.status_code == 200, (
        f"a conversation with thinking is answered with {answer.status_code}: {answer.text[:300]}"
    )
    vllm_server.check()
