"""vllm#13622: the mistral parser does not stream numeric arguments."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {}}}},
}
MARKERS = ["[TOOL_CALLS]"]
WORKING = ['[TOOL_CALLS][{"name": "add", "arguments": {"code": "one"}}]']
FAILING = ['[TOOL_CALLS][{"name": "add", "arguments": {"code": 1}}]']


@pytest.mark.vllm_case("vllm-13622")
def test_stream(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "mistral", "tools": [TOOL], "markers": MARKERS}
    working = vllm_probe("parsers:tool_calls", pieces=WORKING, **options)
    vllm_at_work("a string argument is streamed", working["characters"]["calls"] == working["whole"]["calls"] != [])
    result = vllm_probe("parsers:tool_calls", pieces=FAILING, **options)
    whole, streamed = result["whole"]["calls"], result["characters"]["calls"]
    assert streamed == whole, f"mistral streams {streamed} instead of {whole}"
