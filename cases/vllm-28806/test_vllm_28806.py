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
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "hermes", "tools": [TOOL], "markers": MARKERS}
    given = vllm_probe("parsers:tool_calls", pieces=[GIVEN], **options)["characters"]["calls"]
    vllm_at_work("arguments are streamed if the call has some", "UTC" in given[0]["arguments"])
    result = vllm_probe("parsers:tool_calls", pieces=[BARE], **options)
    whole, streamed = result["whole"]["calls"], result["characters"]["calls"]
    assert streamed == whole, f"expected {whole} from the stream, got {streamed}"
