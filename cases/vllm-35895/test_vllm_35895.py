"""vllm#35895: the minimax_m2 parser loses a call that arrives in one delta."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {"type": "integer"}}}},
}
MARKERS = ["<minimax:tool_call>", "</minimax:tool_call>"]
PIECES = [
    "<minimax:tool_call>",
    '\n<invoke name="add">\n<parameter name="code">1</parameter>\n</invoke>\n',
    "</minimax:tool_call>",
]


@pytest.mark.vllm_case("vllm-35895")
def test_stream(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {
        "tokenizer": vllm_model_path,
        "parser": "minimax_m2",
        "tools": [TOOL],
        "markers": MARKERS,
    }
    result = vllm_probe("parsers:tool_calls", pieces=PIECES, **options)
    vllm_at_work(
        "the same call is streamed character by character",
        result["characters"]["calls"] == result["whole"]["calls"] != [],
    )
    whole, streamed = result["whole"]["calls"], result["streamed"]["calls"]
    assert streamed == whole, f"minimax_m2 streams {streamed} instead of {whole}"
