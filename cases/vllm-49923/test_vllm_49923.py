"""vllm#49923: the llama3_json parser streams only one of two calls unless `; ` separates them."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {"type": "integer"}}}},
}
CALLS = ['{"name": "add", "parameters": {"code": 1}}', '{"name": "add", "parameters": {"code": 2}}']


@pytest.mark.vllm_case("vllm-49923")
def test_separator_of_one_character(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "llama3_json", "tools": [TOOL]}
    expected = [{"name": "add", "arguments": f'{{"code": {code}}}'} for code in (1, 2)]
    spaced = vllm_probe("parsers:tool_calls", pieces=["; ".join(CALLS)], **options)["characters"]["calls"]
    vllm_at_work("two calls are streamed if a space follows the separator", spaced == expected)
    calls = vllm_probe("parsers:tool_calls", pieces=[";".join(CALLS)], **options)["characters"]["calls"]
    assert calls == expected, f"llama3_json streams {calls} for two calls"
