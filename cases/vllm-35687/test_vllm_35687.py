"""vllm#35687: a tool call ends the reasoning."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]


@pytest.mark.vllm_case("vllm-35687")
def test_call(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    def streamed(text: str) -> dict[str, str]:
        result = vllm_probe(
            "parsers:reasoning", tokenizer=vllm_model_path, parser="qwen3", markers=MARKERS, pieces=[text]
        )
        return {key: result["characters"][key] or "" for key in ("reasoning", "content")}

    ended = streamed(f"<think>the time</think>{CALL}")
    vllm_at_work("reasoning with an end is told apart", ended == {"reasoning": "the time", "content": CALL})
    parts = streamed(f"<think>the time{CALL}")
    assert "<tool_call>" not in parts["reasoning"], f"the tool call is streamed as reasoning: {parts}"
