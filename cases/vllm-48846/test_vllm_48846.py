"""vllm#48846: the value of an argument must arrive as the model wrote it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}

MARKERS = ["<minimax:tool_call>", "</minimax:tool_call>"]
CALL = """<minimax:tool_call>
<invoke name="weather">
<parameter name="city">CITY</parameter>
</invoke>
</minimax:tool_call>"""


@pytest.mark.vllm_case("vllm-48846")
def test_white_space(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    def city(value: str) -> str:
        options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": "minimax_m2", "tools": [TOOL]}
        result = vllm_probe("parsers:tool_calls", pieces=[CALL.replace("CITY", value)], markers=MARKERS, **options)
        (found,) = result["whole"]["calls"]
        return str(json.loads(found["arguments"])["city"])

    vllm_at_work("a value without white space around it is found", city("Paris") == "Paris")
    indented = "    return x\n"
    value = city(indented)
    assert value == indented, f"the value {indented!r} arrives as {value!r}"
