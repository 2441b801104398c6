"""vllm#18108: the hermes parser drops the first argument of a streamed call when it is no string."""

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
    return [each["arguments"].strip() for each in calls]  # some versions add the line break behind the call


@pytest.mark.vllm_case("vllm-18108")
def test_number_first(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    asked: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "hermes", "tools": [TOOL], "markers": MARKERS}
    other = vllm_probe("tool_calls", pieces=[STRING], **asked)["characters"]["calls"]
    vllm_at_work("a string as first argument is streamed", "city" in arguments(other)[0])
    found = vllm_probe("tool_calls", pieces=[NUMBER], **asked)
    whole, streamed = arguments(found["whole"]["calls"]), arguments(found["characters"]["calls"])
    assert streamed == whole, f"expected {whole} from the stream, got {streamed}"
