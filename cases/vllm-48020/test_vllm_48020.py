"""vllm#48020: a tool call that arrives in one delta is lost."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"code": {"type": "integer"}}}},
}
MARKERS = [
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
]
V3 = '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"code": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
V31 = '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"code": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
GEMMA = "<start_function_call>call:add{city:<escape>x<escape>}<end_function_call>"


def ask(probe: Probe, at_work: AtWork, model: str, parser: str, text: str, markers: list[str]) -> None:
    result = probe("parsers:tool_calls", tokenizer=model, parser=parser, pieces=[text], tools=[TOOL], markers=markers)
    whole, streamed = result["whole"]["calls"], result["streamed"]["calls"]
    at_work("the same call is streamed character by character", result["characters"]["calls"] == whole != [])
    assert streamed == whole, f"expected {whole} from the stream of {parser}, got {streamed}"


@pytest.mark.vllm_case("vllm-48020")
@pytest.mark.parametrize(("parser", "text"), [("deepseek_v3", V3), ("deepseek_v31", V31)], ids=["v3", "v31"])
def test_one_delta(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str, parser: str, text: str) -> None:
    ask(vllm_probe, vllm_at_work, vllm_model_path, parser, text, MARKERS)


@pytest.mark.vllm_case("vllm-48020")
def test_one_delta_of_functiongemma(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    markers = ["<start_function_call>", "<end_function_call>", "<escape>"]
    ask(vllm_probe, vllm_at_work, vllm_model_path, "functiongemma", GEMMA, markers)
