"""vllm#31501: the hermes parser loses arguments that arrive in one delta."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {"type": "integer"}}}},
}
MARKERS = ["<tool_call>", "</tool_call>"]
WORKING = ['<tool_call>{"name": "add", "arguments": {"code": 1}}\n</tool_call>']
FAILING = ['<tool_call>{"name": "add", ', '"arguments": {"code": 1}}</tool_call>']


@pytest.mark.vllm_case("vllm-31501")
def test_stream(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "hermes", "tools": [TOOL], "markers": MARKERS}
    working = vllm_probe("parsers:tool_calls", pieces=WORKING, **options)
    by_characters = working["characters"]["calls"][0]["arguments"].strip()
    vllm_at_work("the same call is streamed character by character", by_characters.startswith('{"code": '))
    result = vllm_probe("parsers:tool_calls", pieces=FAILING, **options)
    whole, streamed = result["whole"]["calls"], result["streamed"]["calls"]
    assert streamed == whole, f"hermes streams {streamed} instead of {whole}"
