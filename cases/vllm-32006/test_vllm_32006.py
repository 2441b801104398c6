"""vllm#32006: a request with two constraints is answered or rejected, and the engine keeps working."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import Server

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.vllm_case("vllm-32006")
@pytest.mark.vllm_engine(
    front="serve",
    generation="V1",
    fresh=True,
    server_options={"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
)
def test_required_tool_and_format(vllm_server: Server, vllm_leg: str) -> None:
    body: dict[str, Any] = {
        "model": vllm_server.model,
        "messages": [{"role": "user", "content": "Hello"}],
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_tokens": 40,
    }
    if vllm_leg == "subject":
        body["response_format"] = {"type": "json_object"}
    vllm_server.post("/v1/chat/completions", body, timeout=15)  # any status is fine
    vllm_server.check()
