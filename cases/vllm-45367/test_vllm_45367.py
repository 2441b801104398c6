"""vllm#45367: message_start must hold a whole message object."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Server


@pytest.mark.vllm_case("vllm-45367")
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_message_start(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body: dict[str, Any] = {
        "model": vllm_server.model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 4,
        "stream": True,
    }
    answer = vllm_server.post("/v1/messages", body)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    starts = [event["message"] for event in events if event["type"] == "message_start"]
    vllm_at_work("a message is streamed", len(starts) == 1 and events[-1]["type"] == "message_stop")
    missing = [key for key in ("type", "role") if key not in starts[0]]
    assert not missing, f"the message of message_start has no {' and no '.join(missing)}: {starts[0]}"
    vllm_server.check()
