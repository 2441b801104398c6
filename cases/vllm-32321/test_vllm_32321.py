"""vllm#32321: a call without arguments is a call."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
}


@pytest.mark.vllm_case("vllm-32321")
def test_no_arguments(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    def calls(text: str) -> list[dict[str, Any]]:
        options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "glm45", "tools": [TOOL]}
        result = vllm_probe("parsers:tool_calls", pieces=[text], markers=["<tool_call>", "</tool_call>"], **options)
        found: list[dict[str, Any]] = result["whole"]["calls"]
        return found

    line = calls("<tool_call>now\n</tool_call>")
    vllm_at_work("the call is found if a line break follows the name", len(line) == 1)
    assert calls("<tool_call>now</tool_call>") == line, "glm45 finds no call without arguments"
