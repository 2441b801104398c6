"""vllm#35615: the qwen3_coder parser loses parameters that arrive in one delta."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"code": {"type": "integer"}, "more": {"type": "integer"}}},
    },
}
MARKERS = ["<tool_call>", "</tool_call>"]
PIECES = [
    "<tool_call>",
    "\n<function=add>\n",
    "<parameter=code>\n1\n</parameter>\n",
    "<parameter=more>\n2\n</parameter>\n</function>\n",
    "</tool_call>",
]


@pytest.mark.vllm_case("vllm-35615")
@pytest.mark.vllm_requires(vllm=">=0.10.2")  # before, the parser streams no such call character by character either
def test_stream(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {
        "tokenizer": vllm_model_path,
        "parser": "qwen3_coder",
        "tools": [TOOL],
        "markers": MARKERS,
    }
    result = vllm_probe("parsers:tool_calls", pieces=PIECES, **options)
    vllm_at_work(
        "the same call is streamed character by character",
        result["characters"]["calls"] == result["whole"]["calls"] != [],
    )
    whole, streamed = result["whole"]["calls"], result["streamed"]["calls"]
    assert streamed == whole, f"qwen3_coder streams {streamed} instead of {whole}"
