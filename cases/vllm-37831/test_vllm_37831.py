"""vllm#37831: an optional integer is an integer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

MARKERS = ["<tool_call>", "</tool_call>"]
CALL = "<tool_call>\n<function=search>\n<parameter=limit>\n5\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.vllm_case("vllm-37831")
def test_optional(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    def limit(schema: dict[str, Any]) -> Any:
        parameters = {"type": "object", "properties": {"limit": schema}}
        tool = {"type": "function", "function": {"name": "search", "parameters": parameters}}
        options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "qwen3_coder", "tools": [tool]}
        (call,) = vllm_probe("parsers:tool_calls", pieces=[CALL], markers=MARKERS, **options)["whole"]["calls"]
        return json.loads(call["arguments"])["limit"]

    vllm_at_work("an integer arrives", limit({"type": "integer"}) == 5)
    value = limit({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None})
    assert value == 5, f"an optional integer arrives as {value!r}"
