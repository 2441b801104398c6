"""vllm#19569: the pythonic parsers reject negative numbers."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {"type": "integer"}}}},
}


@pytest.mark.vllm_case("vllm-19569")
@pytest.mark.parametrize("parser", ["pythonic", "llama4_pythonic"])
def test_negative_number(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str, parser: str) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": parser, "tools": [TOOL]}
    positive = vllm_probe("parsers:tool_calls", pieces=["[add(code=1)]"], **options)["whole"]["calls"]
    vllm_at_work("a positive number is parsed", positive == [{"name": "add", "arguments": '{"code": 1}'}])
    calls = vllm_probe("parsers:tool_calls", pieces=["[add(code=-1)]"], **options)["whole"]["calls"]
    assert calls == [{"name": "add", "arguments": '{"code": -1}'}], f"pythonic returns {calls} for add(code=-1)"
