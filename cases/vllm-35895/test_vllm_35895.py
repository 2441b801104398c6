"""vllm#35895: the minimax_m2 parser loses a call that comes in one delta."""

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
    asked: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "minimax_m2", "tools": [TOOL], "markers": MARKERS}
    found = vllm_probe("tool_calls", pieces=PIECES, **asked)
    vllm_at_work(
        "the same call is streamed by characters", found["characters"]["calls"] == found["whole"]["calls"] != []
    )
    whole, streamed = found["whole"]["calls"], found["streamed"]["calls"]
    assert streamed == whole, f"minimax_m2 streams {streamed} of {whole}"
