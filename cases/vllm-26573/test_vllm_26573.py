"""vllm#26573: the seed_oss parser streams a call as text if no reasoning precedes it."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

CALL = "<seed:tool_call>\n<function=add>\n<parameter=code>one</parameter>\n</function>\n</seed:tool_call>"
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {"type": "string"}}}},
}
MARKERS = ["<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>"]
WORKING = ["<seed:think>a</seed:think>" + CALL]
FAILING = [CALL]


@pytest.mark.vllm_case("vllm-26573")
def test_stream(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "seed_oss", "tools": [TOOL], "markers": MARKERS}
    working = vllm_probe("parsers:tool_calls", pieces=WORKING, **options)
    vllm_at_work(
        "a call after reasoning is streamed", working["characters"]["calls"] == working["whole"]["calls"] != []
    )
    result = vllm_probe("parsers:tool_calls", pieces=FAILING, **options)
    whole, streamed = result["whole"]["calls"], result["characters"]["calls"]
    assert streamed == whole, f"seed_oss streams {streamed} instead of {whole}"
