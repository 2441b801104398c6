"""Requests of clients: the conversation in the formats of several APIs."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress.engines.inputs.client_request import ClientRequest

ASKED = {"role": "user", "content": [{"type": "text", "text": "Is it "}, {"text": "warm?"}]}
CHAT = [ASKED, {"role": "assistant", "content": None}, {"role": "tool", "content": "18"}]
RESPONSES = [
    {"role": "user", "content": "Is it warm?"},
    {"type": "reasoning", "content": []},
    {"type": "function_call", "name": "get", "arguments": "{}"},
    {"type": "function_call_output", "output": "18"},
]
RESULT = {"type": "tool_result", "content": [{"type": "text", "text": "18"}]}
ANTHROPIC = [
    ASKED,
    {"role": "assistant", "content": [{"type": "tool_use"}]},
    {"role": "user", "content": [RESULT]},
]


@pytest.mark.parametrize(
    "body",
    [{"messages": CHAT}, {"input": RESPONSES}, {"messages": ANTHROPIC}],
    ids=["chat", "responses", "anthropic"],
)
def test_a_tool_loop_is_in_its_second_turn(body: dict[str, Any]) -> None:
    request = ClientRequest("/v1/any", body)
    assert (request.text, request.turn) == ("18", 1)
    assert "Is it warm?" in request.conversation


@pytest.mark.parametrize("body", [{"prompt": "Hi"}, {"input": "Hi"}, {"prompt": ["Hi"]}])
def test_a_prompt_is_a_conversation_of_one(body: dict[str, Any]) -> None:
    request = ClientRequest("/v1/completions", body)
    assert (request.text, request.turn, request.conversation) == ("Hi", 0, "Hi")


@pytest.mark.parametrize("body", [{}, {"messages": None}, {"messages": [3, None]}])
def test_a_malformed_conversation_says_nothing(body: dict[str, Any]) -> None:
    request = ClientRequest("/v1/chat/completions", body)
    assert (request.text, request.turn) == ("", 0)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, "auto"),
        ("none", "auto"),
        ("required", "required"),
        ({"type": "any"}, "required"),
        ({"type": "function", "function": {"name": "f"}}, "named"),
        ({"type": "tool", "name": "f"}, "named"),
        ({"type": "auto"}, "auto"),
    ],
)
def test_the_choice_of_a_tool_is_read_in_the_words_of_each_api(
    choice: object, expected: str
) -> None:
    assert ClientRequest("/v1/any", {"tool_choice": choice}).tool_choice == expected


def test_only_requests_that_the_model_answers_generate() -> None:
    assert ClientRequest("/v1/messages").generates
    assert not ClientRequest("/v1/messages/count_tokens").generates
    assert not ClientRequest("/v1/chat/completions", method="GET").generates
