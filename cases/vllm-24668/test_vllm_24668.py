"""vllm#24668: tool calls that are written on several lines must be streamed as they are."""

from __future__ import annotations

import json

import pytest

from pytest_vllm_regress import AtWork, Probe

CALLS = [{"name": "weather", "parameters": {"city": city}} for city in ("Rome", "Oslo")]


@pytest.mark.vllm_case("vllm-24668")
def test_calls_on_several_lines(vllm_probe: Probe, vllm_at_work: AtWork) -> None:
    def arguments(separator: str) -> list[str]:
        text = f"[{separator.join(json.dumps(call) for call in CALLS)}]"
        streamed: list[str] = vllm_probe("arguments", text=text)
        return streamed

    expected = [json.dumps(call["parameters"]) for call in CALLS]
    vllm_at_work("calls on one line are streamed", arguments(", ") == expected)
    streamed = arguments(",\n")
    assert streamed == expected, f"expected the streamed arguments {expected}, got {streamed}"
