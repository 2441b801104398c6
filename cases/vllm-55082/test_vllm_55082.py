"""vllm#55082: the step3 parser loses the arguments of a call that arrives in one delta."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {"type": "integer"}}}},
}
MARKERS = [
    "<｜tool_calls_begin｜>",
    "<｜tool_calls_end｜>",
    "<｜tool_call_begin｜>",
    "<｜tool_call_end｜>",
    "<｜tool_sep｜>",
]
TEXT = (
    "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
    '<steptml:invoke name="add"><steptml:parameter name="code">1</steptml:parameter></steptml:invoke>'
    "<｜tool_call_end｜><｜tool_calls_end｜>"
)


@pytest.mark.vllm_case("vllm-55082")
def test_one_delta(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "step3", "tools": [TOOL], "markers": MARKERS}
    result = vllm_probe("parsers:tool_calls", pieces=[TEXT], **options)
    whole, streamed = result["whole"]["calls"], result["streamed"]["calls"]
    vllm_at_work("the arguments are streamed character by character", result["characters"]["calls"] == whole != [])
    assert streamed == whole, f"expected {whole} from the stream of step3, got {streamed}"
