"""vllm#18257: the phi4_mini_json parser streams nothing at all."""

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
    asked: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "phi4_mini_json", "tools": [TOOL]}
    found = vllm_probe("tool_calls", pieces=[TEXT], **asked)
    whole, streamed = found["whole"]["calls"], found["characters"]["calls"]
    vllm_at_work("the whole text has the call", [each["name"] for each in whole] == ["add"])
    assert streamed == whole, f"expected {whole} from the stream of phi4_mini_json, got {streamed}"
