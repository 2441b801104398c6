"""vllm#13622: the mistral parser streams no arguments that are numbers."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {}}}},
}
MARKERS = ["[TOOL_CALLS]"]
SANE = ['[TOOL_CALLS][{"name": "add", "arguments": {"code": "one"}}]']
BAD = ['[TOOL_CALLS][{"name": "add", "arguments": {"code": 1}}]']


@pytest.mark.vllm_case("vllm-13622")
def test_stream(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    asked: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "mistral", "tools": [TOOL], "markers": MARKERS}
    sane = vllm_probe("tool_calls", pieces=SANE, **asked)
    vllm_at_work("a text is streamed", sane["characters"]["calls"] == sane["whole"]["calls"] != [])
    found = vllm_probe("tool_calls", pieces=BAD, **asked)
    whole, streamed = found["whole"]["calls"], found["characters"]["calls"]
    assert streamed == whole, f"mistral streams {streamed} of {whole}"
