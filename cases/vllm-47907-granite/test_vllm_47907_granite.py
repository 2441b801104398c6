"""vllm#47907: the granite-20b-fc parser loses calls that come in one delta."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {"type": "integer"}}}},
}
PIECES = [
    '<function_call> {"name": "add", "arguments": {"code": 1}}<function_call> {"name": "add", "arguments": {"code": 2}}'
]


@pytest.mark.vllm_case("vllm-47907-granite")
def test_stream(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    asked: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "granite-20b-fc", "tools": [TOOL]}
    found = vllm_probe("tool_calls", pieces=PIECES, **asked)
    vllm_at_work(
        "the same calls are streamed by characters", found["characters"]["calls"] == found["whole"]["calls"] != []
    )
    whole, streamed = found["whole"]["calls"], found["streamed"]["calls"]
    assert streamed == whole, f"granite-20b-fc streams {streamed} of {whole}"
