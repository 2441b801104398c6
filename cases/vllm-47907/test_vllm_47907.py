"""vllm#47907: the gigachat3 parser streams {} for a call that arrives in few deltas."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {"type": "integer"}}}},
}
START = "<|function_call|>"
CALL = '{"name": "add", "arguments": {"code": 1}}'


@pytest.mark.vllm_case("vllm-47907")
@pytest.mark.vllm_requires(
    vllm=">=0.19"
)  # up to 0.18.1 a call that arrives character by character is not streamed either
@pytest.mark.parametrize("pieces", [[START + CALL], [START, CALL]], ids=["one", "two"])
def test_few_deltas(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str, pieces: list[str]) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "gigachat3", "tools": [TOOL], "markers": [START]}
    result = vllm_probe("parsers:tool_calls", pieces=pieces, **options)
    whole, streamed = result["whole"]["calls"], result["streamed"]["calls"]
    vllm_at_work("the arguments are streamed character by character", result["characters"]["calls"] == whole != [])
    assert streamed == whole, f"expected {whole} from the stream of gigachat3, got {streamed}"
