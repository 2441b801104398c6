"""vllm#31501: the hermes parser loses arguments that come in one delta."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {"type": "integer"}}}},
}
MARKERS = ["<tool_call>", "</tool_call>"]
SANE = ['<tool_call>{"name": "add", "arguments": {"code": 1}}\n</tool_call>']
BAD = ['<tool_call>{"name": "add", ', '"arguments": {"code": 1}}</tool_call>']


@pytest.mark.vllm_case("vllm-31501")
def test_stream(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    asked: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "hermes", "tools": [TOOL], "markers": MARKERS}
    sane = vllm_probe("tool_calls", pieces=SANE, **asked)
    by_characters = sane["characters"]["calls"][0]["arguments"].strip()
    vllm_at_work("the same call is streamed by characters", by_characters.startswith('{"code": '))
    found = vllm_probe("tool_calls", pieces=BAD, **asked)
    whole, streamed = found["whole"]["calls"], found["streamed"]["calls"]
    assert streamed == whole, f"hermes streams {streamed} of {whole}"
