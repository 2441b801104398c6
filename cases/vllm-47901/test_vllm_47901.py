"""vllm#47901: after a call without arguments, the xlam and hunyuan parsers stream {} for every later call."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {"type": "integer"}}}},
}
CALLS = '[{"name": "add", "arguments": {}}, {"name": "add", "arguments": {"code": 1}}]'
ALONE = '[{"name": "add", "arguments": {"code": 1}}]'


@pytest.mark.vllm_case("vllm-47901")
@pytest.mark.parametrize(
    ("parser", "form"), [("xlam", "{}"), ("hunyuan_a13b", "<tool_calls>{}</tool_calls>")], ids=["xlam", "hunyuan"]
)
def test_later_calls(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str, parser: str, form: str) -> None:
    options: dict[str, Any] = {"tokenizer": vllm_model_path, "parser": parser, "tools": [TOOL]}
    alone = vllm_probe("parsers:tool_calls", pieces=[form.replace("{}", ALONE)], **options)
    vllm_at_work("the same call alone is streamed", alone["characters"]["calls"] == alone["whole"]["calls"] != [])
    result = vllm_probe("parsers:tool_calls", pieces=[form.replace("{}", CALLS)], **options)
    whole, streamed = result["whole"]["calls"], result["characters"]["calls"]
    assert streamed == whole, f"expected {whole} from the stream of {parser}, got {streamed}"
