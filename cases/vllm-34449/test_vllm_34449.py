"""vllm#34449: calls must be found however they are cut into deltas."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def call(name: str, **arguments: str) -> str:
    pairs = [f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items()]
    return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"


def without_blanks(calls: list[dict[str, str]]) -> list[tuple[str, str]]:
    """Return names and arguments; vLLM 0.16 and 0.17 stream the arguments without the blanks of the complete text."""
    return [(found["name"], found["arguments"].replace(" ", "")) for found in calls]


@pytest.mark.vllm_case("vllm-34449")
def test_two_calls(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "glm45", "tools": [TOOL]}
    text = call("weather", city="Paris") + call("weather", city="Rome")
    result = vllm_probe("parsers:tool_calls", pieces=[text], markers=["<tool_call>", "</tool_call>"], **options)
    whole, streamed, small = (without_blanks(result[way]["calls"]) for way in ("whole", "streamed", "characters"))
    vllm_at_work("both calls are found in small deltas", small == whole and len(whole) == 2)
    assert streamed == whole, f"glm45 streams {len(streamed)} of {len(whole)} calls"
