"""vllm#42026: the value of an argument must arrive as the model wrote it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "write", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}},
}
CALL = "<tool_call>write\n<arg_key>text</arg_key>\n<arg_value>TEXT</arg_value>\n</tool_call>"


@pytest.mark.vllm_case("vllm-42026")
def test_white_space(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    def text(value: str) -> str:
        options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "glm45", "tools": [TOOL]}
        pieces, markers = [CALL.replace("TEXT", value)], ["<tool_call>", "</tool_call>"]
        (call,) = vllm_probe("parsers:tool_calls", pieces=pieces, markers=markers, **options)["whole"]["calls"]
        return str(json.loads(call["arguments"])["text"])

    vllm_at_work("a value without white space around it is found", text("Paris") == "Paris")
    indented = "    return x\n"
    value = text(indented)
    assert value == indented, f"the value {indented!r} arrives as {value!r}"
