"""vllm#38158: every choice of a streamed answer must have its own tool call."""

from __future__ import annotations

import json

import pytest

from pytest_vllm_regress import AtWork, Script, Server

TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CITIES = ["Paris", "Rome", "Oslo"]


def _script(city: str) -> Script:
    return Script.text(f'<tool_call>\n{{"name": "weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>')


@pytest.mark.vllm_case("vllm-38158")
@pytest.mark.vllm_requires(
    vllm=">=0.8", cause="failure"
)  # in 0.7.3 not every choice has its call, with or without a stream
@pytest.mark.vllm_engine(
    front="serve",
    generation="V1",
    server_options={"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
)
def test_choices(vllm_server: Server, vllm_at_work: AtWork) -> None:
    first, *others = [_script(city) for city in CITIES]
    messages = [{"role": "user", "content": first.prompt("Weather?", *others)}]

    def cities(stream: bool) -> list[list[str]]:
        answers = vllm_server.answers(
            messages, stream=stream, n=len(CITIES), tools=[TOOL], tool_choice="auto", max_tokens=120
        )
        return [[call.arguments for call in answer.tool_calls] for answer in answers]

    whole = cities(stream=False)
    vllm_at_work(
        "each choice has its call without streaming",
        [[json.loads(call) for call in calls] for calls in whole] == [[{"city": city}] for city in CITIES],
    )
    streamed = cities(stream=True)
    right = sum(calls == expected for calls, expected in zip(streamed, whole, strict=True))
    assert right == len(CITIES), f"{right} of {len(CITIES)} choices stream their call: {streamed}"
