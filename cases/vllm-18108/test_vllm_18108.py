"""vllm#18108: the hermes parser drops the first argument of a streamed call if it is not a string."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {"type": "integer"}}}},
}
MARKERS = ["<tool_call>", "</tool_call>"]
NUMBER = '<tool_call>\n{"name": "add", "arguments": {"code": 1, "city": "x"}}\n</tool_call>'
STRING = '<tool_call>\n{"name": "add", "arguments": {"city": "x"}}\n</tool_call>'


def arguments(calls: list[dict[str, str]]) -> list[str]:
    return [call["arguments"].strip() for call in calls]  # some versions append the line break that follows the call


@pytest.mark.vllm_case("vllm-18108")
def test_number_first(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "hermes", "tools": [TOOL], "markers": MARKERS}
    other = vllm_probe("parsers:tool_calls", pieces=[STRING], **options)["characters"]["calls"]
    vllm_at_work("a string as the first argument is streamed", "city" in arguments(other)[0])
    result = vllm_probe("parsers:tool_calls", pieces=[NUMBER], **options)
    whole, streamed = arguments(result["whole"]["calls"]), arguments(result["characters"]["calls"])
    assert streamed == whole, f"expected {whole} from the stream, got {streamed}"
