"""vllm#30920: the arguments of a tool call must hold the characters that the model wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def call(name: str, **arguments: str) -> str:
    pairs = [f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items()]
    return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"


@pytest.mark.vllm_case("vllm-30920")
def test_characters(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    def arguments(city: str) -> str:
        options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "glm45", "tools": [TOOL]}
        result = vllm_probe(
            "parsers:tool_calls",
            pieces=[call("weather", city=city)],
            markers=["<tool_call>", "</tool_call>"],
            **options,
        )
        (found,) = result["whole"]["calls"]
        return str(found["arguments"])

    vllm_at_work("a call with ASCII alone is found", json.loads(arguments("Paris")) == {"city": "Paris"})
    text = arguments("\u5317\u4eac")
    vllm_at_work("the value is right as JSON", json.loads(text) == {"city": "\u5317\u4eac"})
    assert "\u5317\u4eac" in text, f"the arguments are escaped: {text}"
