"""vllm#26573: the seed_oss parser streams a call as text when no thinking came before it."""

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
SANE = ["<seed:think>a</seed:think>" + CALL]
BAD = [CALL]


@pytest.mark.vllm_case("vllm-26573")
def test_stream(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    asked: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "seed_oss", "tools": [TOOL], "markers": MARKERS}
    sane = vllm_probe("tool_calls", pieces=SANE, **asked)
    vllm_at_work("a call after thinking is streamed", sane["characters"]["calls"] == sane["whole"]["calls"] != [])
    found = vllm_probe("tool_calls", pieces=BAD, **asked)
    whole, streamed = found["whole"]["calls"], found["characters"]["calls"]
    assert streamed == whole, f"seed_oss streams {streamed} of {whole}"
