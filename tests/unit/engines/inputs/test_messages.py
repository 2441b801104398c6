"""Chat answers of different versions, whole and streamed, give equal values."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress.engines.inputs.messages import Message, ToolCall, joined, whole

CALLS = (ToolCall("weather", '{"city": "Ulm"}'), ToolCall("time", "{}"))


def choice(index: int, **delta: object) -> dict[str, object]:
    end = delta.pop("end", None)
    return {"index": index, "delta": delta, "finish_reason": end}


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_whole_answers_of_every_version_are_equal(name: str) -> None:
    calls = [
        {
            "id": f"call-{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for number, call in enumerate(CALLS)
    ]
    answer = {
        "choices": [
            {
                "index": 1,
                "message": {"content": None, name: "hm", "tool_calls": calls},
                "finish_reason": "tool_calls",
            },
            {"index": 0, "message": {"content": "yes"}, "finish_reason": "stop"},
        ]
    }
    first, second = whole(answer)
    assert first == Message("yes", finish_reason="stop")
    assert second == Message("", "hm", CALLS, "tool_calls") and second.tool_calls[1].id == "call-1"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_streamed_answers_of_every_version_are_equal(name: str) -> None:
    def call(number: int, **function: str) -> dict[str, object]:
        return {"index": number, "function": function}

    chunks: list[dict[str, Any]] = [
        {"choices": [choice(1, role="assistant", content="")]},
        {"choices": [choice(1, **{name: "h"}), choice(0, content="ye")]},
        {"choices": [choice(1, **{name: "m", "content": None})]},
        {"choices": [choice(1, tool_calls=[{**call(0, name="weather"), "id": "call-7"}])]},
        {
            "choices": [
                choice(1, tool_calls=[call(0, arguments='{"city": "U'), call(1, name="time")])
            ]
        },
        {"choices": [choice(1, tool_calls=[call(1, arguments="{}"), call(0, arguments='lm"}')])]},
        {"choices": [choice(1, end="tool_calls"), choice(0, content="s", end="stop")]},
        {"choices": [], "usage": {"completion_tokens": 9}},
    ]
    first, second = joined(chunks)
    assert first == Message("yes", finish_reason="stop")
    assert second == Message("", "hm", CALLS, "tool_calls") and second.tool_calls[0].id == "call-7"
