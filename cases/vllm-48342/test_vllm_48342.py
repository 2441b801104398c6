"""vllm#48342: the deepseek_v3 parser drops the last brace of streamed arguments."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {"type": "integer"}}}},
}
MARKERS = [
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
]
HEAD = ["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "function", "<｜tool▁sep｜>", "add", "\n```json\n"]
PIECES = [*HEAD, '{"code": 1', "}\n```<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"]


@pytest.mark.vllm_case("vllm-48342")
def test_last_brace(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {
        "tokenizer": vllm_model_path,
        "parser": "deepseek_v3",
        "tools": [TOOL],
        "markers": MARKERS,
    }
    result = vllm_probe("parsers:tool_calls", pieces=PIECES, **options)
    whole, streamed = result["whole"]["calls"], result["streamed"]["calls"]
    vllm_at_work("the call is streamed character by character", result["characters"]["calls"] == whole != [])
    assert streamed == whole, f"expected {whole} from the stream, got {streamed}"
