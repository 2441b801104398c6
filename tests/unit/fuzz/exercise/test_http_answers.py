"""Answers of a server do not depend on identifiers, times, or the pieces of a stream."""

from __future__ import annotations

import json
from typing import Any

from pytest_vllm_regress.fuzz.exercise.http_answers import added_up, events_of, normalised


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> tuple[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **more}
    return "", {"id": "chatcmpl-0123456789abcdef", "created": 1, "choices": [choice]}


def test_identifiers_times_and_addresses_are_replaced() -> None:
    answer = {
        "id": "chatcmpl-0123456789abcdef",
        "created": 1700000000,
        "expires": 1700000000,
        "logprob": 0.123456,
        "url": "http://127.0.0.1:4711/v1",
        "nothing": None,
        "object": "chat.completion",
    }
    assert normalised(answer, {"http://127.0.0.1:4711": "URL"}) == {
        "id": "chatcmpl-*",
        "expires": "time",
        "logprob": 0.123,
        "url": "URL/v1",
        "object": "chat.completion",
    }


def test_the_version_of_the_server_is_no_answer() -> None:
    answer = {"system_fingerprint": "vllm-1.0.dev7+gabc", "body": {"version": "1.0.dev7+gabc"}}
    assert normalised(answer, {"1.0.dev7+gabc": "VERSION"}) == {"body": {"version": "VERSION"}}


def test_the_sum_of_a_stream_does_not_depend_on_its_pieces() -> None:
    first, last = chunk({"role": "assistant"}), chunk({}, "stop")
    fine = [first, *(chunk({"content": letter}) for letter in "abc"), last, ("", "[DONE]")]
    coarse = [first, chunk({"content": "abc"}), last, ("", "[DONE]")]
    assert added_up(fine) == added_up(coarse)
    (choice,) = added_up(fine)["sums"][""]["choices"]
    assert choice["delta"] == {"role": "assistant", "content": "abc"}
    assert choice["finish_reason"] == "stop"


def test_the_last_piece_of_a_text_may_come_with_the_end() -> None:
    apart = [chunk({"content": "ab"}), chunk({}, "stop")]
    assert added_up(apart) == added_up([chunk({"content": "ab"}, "stop")])


def test_what_a_server_counts_by_piece_is_left_out() -> None:
    details = {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 5}}
    sums = added_up([("", {"choices": [], "usage": details})])["sums"]
    assert sums[""]["usage"] == {"completion_tokens": 9, "completion_tokens_details": {}}


def test_lost_text_a_lost_end_and_another_order_show() -> None:
    whole = [chunk({"content": "ab"}), chunk({}, "stop"), ("", "[DONE]")]
    for other in (
        [chunk({"content": "a"}), chunk({}, "stop"), ("", "[DONE]")],
        whole[:-1],
        [whole[1], whole[0], whole[2]],
    ):
        assert added_up(other) != added_up(whole)


def test_calls_are_added_up_by_their_index() -> None:
    def call(index: int, **function: str) -> tuple[str, Any]:
        return chunk({"tool_calls": [{"index": index, "function": function}]})

    events = [call(0, name="f", arguments="{"), call(0, arguments="}"), call(1, name="g")]
    (choice,) = added_up(events)["sums"][""]["choices"]
    functions = [one["function"] for one in choice["delta"]["tool_calls"]]
    assert functions == [{"name": "f", "arguments": "{}"}, {"name": "g"}]


def test_events_with_types_are_added_up_by_type_and_place() -> None:
    events = [
        ("x", {"type": "text.delta", "content_index": 0, "delta": "a", "sequence_number": 1}),
        ("x", {"type": "text.delta", "content_index": 0, "delta": "b", "sequence_number": 2}),
        ("x", {"type": "text.delta", "content_index": 1, "delta": "c", "sequence_number": 3}),
    ]
    sums = added_up(events)["sums"]
    assert [(key, one["delta"]) for key, one in sums.items()] == [
        ("text.delta 0", "ab"),
        ("text.delta 1", "c"),
    ]


def test_events_have_a_name_and_data() -> None:
    lines = ["event: stop", f"data: {json.dumps({'a': 1})}", "", "data: [DONE]", ": comment"]
    assert list(events_of(lines)) == [("stop", {"a": 1}), ("", "[DONE]")]
