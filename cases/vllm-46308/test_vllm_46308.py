"""vllm#46308: the arguments of a tool call must hold the characters that the model wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}

TEXTS = {
    "xlam": '[{"name": "weather", "arguments": {"city": "CITY"}}]',
    "hunyuan_a13b": '<tool_calls>[{"name": "weather", "arguments": {"city": "CITY"}}]</tool_calls>',
}


@pytest.mark.vllm_case("vllm-46308")
@pytest.mark.parametrize("parser", TEXTS)
def test_characters(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str, parser: str) -> None:
    def arguments(city: str) -> str:
        options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": parser, "tools": [TOOL], "markers": []}
        result = vllm_probe("parsers:tool_calls", pieces=[TEXTS[parser].replace("CITY", city)], **options)
        (found,) = result["whole"]["calls"]
        return str(found["arguments"])

    vllm_at_work("a call with ASCII alone is found", json.loads(arguments("Paris")) == {"city": "Paris"})
    text = arguments("\u5317\u4eac")
    vllm_at_work("the value is right as JSON", json.loads(text) == {"city": "\u5317\u4eac"})
    assert "\u5317\u4eac" in text, f"{parser} escapes the arguments: {text}"
