"""vllm#28806: the hermes parser streams no arguments for a tool without parameters."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
MARKERS = ["<tool_call>", "</tool_call>"]
BARE = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
GIVEN = '<tool_call>\n{"name": "now", "arguments": {"zone": "UTC"}}\n</tool_call>'


@pytest.mark.vllm_case("vllm-28806")
def test_no_parameters(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    asked: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "hermes", "tools": [TOOL], "markers": MARKERS}
    given = vllm_probe("tool_calls", pieces=[GIVEN], **asked)["characters"]["calls"]
    vllm_at_work("arguments are streamed where there are some", "UTC" in given[0]["arguments"])
    found = vllm_probe("tool_calls", pieces=[BARE], **asked)
    whole, streamed = found["whole"]["calls"], found["characters"]["calls"]
    assert streamed == whole, f"expected {whole} from the stream, got {streamed}"
