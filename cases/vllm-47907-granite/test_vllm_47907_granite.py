"""vllm#47907: the granite-20b-fc parser loses calls that arrive in one delta."""

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
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "granite-20b-fc", "tools": [TOOL]}
    result = vllm_probe("parsers:tool_calls", pieces=PIECES, **options)
    vllm_at_work(
        "the same calls are streamed character by character",
        result["characters"]["calls"] == result["whole"]["calls"] != [],
    )
    whole, streamed = result["whole"]["calls"], result["streamed"]["calls"]
    assert streamed == whole, f"granite-20b-fc streams {streamed} instead of {whole}"
