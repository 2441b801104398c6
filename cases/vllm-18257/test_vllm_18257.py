"""vllm#18257: the phi4_mini_json parser streams nothing."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {"type": "integer"}}}},
}
TEXT = 'functools[{"name": "add", "arguments": {"code": 1}}]'


@pytest.mark.vllm_case("vllm-18257")
def test_stream(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "phi4_mini_json", "tools": [TOOL]}
    result = vllm_probe("parsers:tool_calls", pieces=[TEXT], **options)
    whole, streamed = result["whole"]["calls"], result["characters"]["calls"]
    vllm_at_work("the complete text is parsed into the call", [call["name"] for call in whole] == ["add"])
    assert streamed == whole, f"expected {whole} from the stream of phi4_mini_json, got {streamed}"
