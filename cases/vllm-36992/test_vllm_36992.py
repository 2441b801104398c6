"""vllm#36992: /v1/messages must accept the block types that Anthropic's clients send back."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Server


@pytest.mark.vllm_case("vllm-36992")
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_redacted_thinking(vllm_server: Server, vllm_at_work: AtWork) -> None:
    def ask(*blocks: dict[str, str]) -> Any:
        messages = [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": [*blocks, {"type": "text", "text": "Hi"}]},
            {"role": "user", "content": "And?"},
        ]
        body = {"model": vllm_server.model, "messages": messages, "max_tokens": 4}
        return vllm_server.post("/v1/messages", body)

    plain = ask()
    vllm_at_work(
        "the same conversation without the block is answered",
        plain.status_code == 200 and plain.json()["usage"]["output_tokens"],
    )
    answer = ask({"type": "redacted_thinking", "data": "c2VjcmV0"})
    assert answer.status_code == 200, f"redacted_thinking is answered with {answer.status_code}: {answer.text[:500]}"
    vllm_server.check()
