"""vllm#29971: message_start must say how many tokens the prompt has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Server


@pytest.mark.vllm_case("vllm-29971")
@pytest.mark.vllm_engine(front="serve", generation="V1")
def test_input_tokens(vllm_server: Server, vllm_at_work: AtWork) -> None:
    body: dict[str, Any] = {
        "model": vllm_server.model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 4,
        "stream": True,
    }
    answer = vllm_server.post("/v1/messages", body)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    (end,) = [event["usage"] for event in events if event["type"] == "message_delta"]
    vllm_at_work("the end of the stream counts them", end["input_tokens"] > 0)
    (start,) = [event["message"] for event in events if event["type"] == "message_start"]
    counted = start.get("usage", {}).get("input_tokens")
    assert counted == end["input_tokens"], f"message_start counts {counted} of {end['input_tokens']} prompt tokens"
    vllm_server.check()
