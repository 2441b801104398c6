"""vllm#21360: the hermes parser loses the beginning of a list of objects in a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

ITEMS = {"items": {"type": "array", "items": {"type": "object"}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": ITEMS}}}
MARKERS = ["<tool_call>", "</tool_call>"]
FRONT = ["<tool_call>", "\n", '{"', "name", '":', ' "', "add", '",', ' "', "arguments", '":', ' {"', "items"]
LIST = ['":', ' [{"', "a", '":', " ", "1", "}]", "}}", "\n", "</tool_call>"]
TEXT = ['":', ' "', "one", '"', "}}", "\n", "</tool_call>"]


def parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except json.JSONDecodeError:
        return None


@pytest.mark.vllm_case("vllm-21360")
def test_list_of_objects(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "hermes", "tools": [TOOL], "markers": MARKERS}
    text = vllm_probe("parsers:tool_calls", pieces=[*FRONT, *TEXT], **options)["streamed"]["calls"]
    vllm_at_work("a string argument is streamed", parsed(text[0]["arguments"]) == {"items": "one"})
    (call,) = vllm_probe("parsers:tool_calls", pieces=[*FRONT, *LIST], **options)["streamed"]["calls"]
    arguments = call["arguments"]
    assert parsed(arguments) == {"items": [{"a": 1}]}, f"hermes streams arguments that are not JSON: {arguments!r}"
