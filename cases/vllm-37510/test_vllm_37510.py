"""vllm#37510: a stream of /v1/messages must consist of events alone."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Server


@pytest.mark.vllm_case("vllm-37510")
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_only_events(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body: dict[str, Any] = {
        "model": vllm_server.model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 4,
        "stream": True,
    }
    answer = vllm_server.post("/v1/messages", body)
    vllm_at_work("a message is streamed to its end", "event: message_stop" in answer.text)
    assert "data: [DONE]" not in answer.text, f"a line without an event: {answer.text[-60:]!r}"
    vllm_server.check()
