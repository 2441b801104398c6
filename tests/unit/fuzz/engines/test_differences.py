"""Which differences count, and what a scripted request must be answered with."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_vllm_regress.fuzz.engines.engine_question import Request
from pytest_vllm_regress.fuzz.engines.side_answer import (
    Choice,
    SideAnswer,
    difference,
    expected,
    foreign_cache,
    inconsistency,
    of_events,
    of_stream,
)

CHOICE = Choice("ab", "stop", "c", (97, 98), ({97: -0.1, 98: -2.0}, None), (-0.1, -0.2))
ANSWER = SideAnswer((CHOICE,), (None, {97: -1.0}))


def with_choice(**changes: object) -> SideAnswer:
    return dataclasses.replace(ANSWER, choices=(dataclasses.replace(CHOICE, **changes),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (SideAnswer((CHOICE, CHOICE)), "number of results"),
        (with_choice(token_ids=(97, 99)), "token ids"),
        (with_choice(token_ids=(97,)), "number of tokens"),
        (with_choice(text="a"), "text"),
        (with_choice(finish_reason="length"), "finish_reason"),
        (with_choice(stop_reason=None), "stop_reason"),
        (with_choice(logprobs=({97: -0.1}, None)), "token ids of logprobs"),
        (with_choice(logprobs=({97: -0.1, 98: -2.0},)), "number of logprobs"),
        (with_choice(sampled=(-0.1, -0.9)), "values of logprobs"),
        (dataclasses.replace(ANSWER, prompt_logprobs=None), "prompt_logprobs missing"),
        (
            dataclasses.replace(ANSWER, prompt_logprobs=(None, {97: -3.0})),
            "values of prompt_logprobs",
        ),
        (SideAnswer(error="refused", words="no"), "answered or refused"),
    ],
)
def test_every_field_is_compared(other: SideAnswer, kind: str) -> None:
    found = difference(ANSWER, other)
    assert found is not None
    assert found.kind == kind


@pytest.mark.parametrize(
    "other",
    [
        ANSWER,
        with_choice(token_ids=None, logprobs=None, sampled=None),
        with_choice(sampled=(-0.1001, -0.2)),
    ],
)
def test_what_a_side_does_not_tell_and_rounding_are_no_difference(other: SideAnswer) -> None:
    assert difference(ANSWER, other) is None


def test_equal_refusals_agree_but_two_dead_engines_are_a_finding() -> None:
    assert (
        difference(SideAnswer(error="refused", words="a"), SideAnswer(error="refused", words="b"))
        is None
    )
    dead = SideAnswer(error="death of the engine")
    found = difference(dead, dead)
    assert found is not None
    assert found.kind == "death of the engine on both sides"


def test_an_aborted_request_has_a_beginning_of_the_answer() -> None:
    beginning = SideAnswer((Choice("a", None, None, (97,)),), partial=True)
    assert difference(ANSWER, beginning) is None
    assert (
        difference(ANSWER, SideAnswer((Choice("x", None, None, (120,)),), partial=True)) is not None
    )


def test_a_text_that_is_not_that_of_its_tokens_contradicts_itself() -> None:
    request = Request("a", options={"max_tokens": 2})
    assert inconsistency(request, SideAnswer((Choice("ab", "length", None, (97, 98)),))) is None
    assert (
        inconsistency(request, SideAnswer((Choice("\ufffdab", "length", None, (97, 98)),)))
        is not None
    )


def test_cached_tokens_must_come_from_a_request_with_the_same_adapter_and_salt() -> None:
    plain, salted = Request("a"), Request("a", salt="s")
    cached = SideAnswer((CHOICE,), cached=16)
    assert foreign_cache([plain, plain], 1, cached) is None
    assert foreign_cache([plain, salted], 1, SideAnswer((CHOICE,), cached=0)) is None
    assert foreign_cache([Request("a", options={"n": 2})], 0, cached) is None
    assert foreign_cache([plain, salted], 1, cached) is not None
    assert (
        foreign_cache(
            [Request("a", adapter=("mine", 1)), Request("a", adapter=("mine", 2))], 1, cached
        )
        is not None
    )


@pytest.mark.parametrize(
    ("said", "ends", "options", "text", "finish", "stop"),
    [
        ("abc", True, {"max_tokens": 9}, "abc", "stop", None),
        ("abc", True, {"max_tokens": 2}, "ab", "length", None),
        ("ab", False, {"max_tokens": 5}, "ababa", "length", None),
        ("one two", True, {"max_tokens": 9, "stop": [" t"]}, "one", "stop", " t"),
        (
            "one two",
            True,
            {"max_tokens": 9, "stop": [" t"], "include_stop_str_in_output": True},
            "one t",
            "stop",
            " t",
        ),
        ("one!", True, {"max_tokens": 9, "stop_token_ids": [33]}, "one", "stop", 33),
        ("a.", False, {"max_tokens": 6, "stop": ["."], "min_tokens": 3}, "a.a", "stop", "."),
        ("é", True, {"max_tokens": 1}, "", "length", None),
        ("é", False, {"max_tokens": 3, "stop": ["é"], "min_tokens": 2}, "é", "length", None),
    ],
)
def test_a_script_determines_the_answer(
    said: str, ends: bool, options: dict[str, object], text: str, finish: str, stop: object
) -> None:
    answer = expected(Request("Hi", (said,), ends, options))
    assert answer is not None
    assert [
        (choice.text, choice.finish_reason, choice.stop_reason) for choice in answer.choices
    ] == [(text, finish, stop)]


def test_nothing_is_expected_where_a_token_completes_two_stop_strings() -> None:
    options = {"max_tokens": 3, "stop": ["o", "to"]}
    assert expected(Request("Hi", ("to",), False, options)) is None
    assert expected(Request("Hi", ("ta",), False, options)) is not None


def test_nothing_is_expected_of_a_request_without_a_script_or_with_a_penalty() -> None:
    assert expected(Request("Hi", (), True, {"max_tokens": 2})) is None
    assert expected(Request("Hi", ("a",), True, {"max_tokens": 2, "presence_penalty": 1.0})) is None


def test_deltas_and_events_add_up_to_whole_answers() -> None:
    part = {
        "index": 0,
        "token_ids": [97],
        "logprobs": None,
        "finish_reason": None,
        "stop_reason": None,
        "text": "a",
    }
    results = [
        {"finished": False, "prompt_logprobs": [None, {"97": -1.0}], "outputs": [part]},
        {
            "finished": True,
            "prompt_logprobs": [],
            "outputs": [{**part, "text": "b", "finish_reason": "length"}],
        },
    ]
    streamed = of_stream(results, "delta")
    assert streamed.choices[0].text == "ab"
    assert streamed.choices[0].finish_reason == "length"
    assert streamed.prompt_logprobs == (None, {97: -1.0})
    events = [
        {"choices": [{"index": 0, "text": "a", "logprobs": {"token_logprobs": [-0.5]}}]},
        {
            "choices": [
                {
                    "index": 0,
                    "text": "b",
                    "logprobs": {"token_logprobs": [-1.5]},
                    "finish_reason": "stop",
                }
            ]
        },
    ]
    served = of_events(events).choices[0]
    assert (served.text, served.finish_reason, served.sampled) == ("ab", "stop", (-0.5, -1.5))
