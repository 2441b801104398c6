"""Drawn requests depend on nothing but themselves, and each pair is asked only what it must agree
on."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.fuzz.drawing import drawn
from pytest_vllm_regress.fuzz.engines.engine_question import Request, Turns
from pytest_vllm_regress.fuzz.engines.pairs import pairs
from pytest_vllm_regress.fuzz.engines.question_drawing import (
    is_sound,
    smaller_questions,
)
from pytest_vllm_regress.fuzz.engines.question_drawing import (
    questions as drawn_questions,
)
from pytest_vllm_regress.fuzz.finding import Problem
from pytest_vllm_regress.util import codec


@pytest.fixture(scope="module")
def questions() -> list[Turns]:
    return drawn(drawn_questions(), 100, 1)


def test_the_same_seed_draws_the_same_questions() -> None:
    first = drawn(drawn_questions(), 30, 1)
    drawn.cache_clear()
    assert first == drawn(drawn_questions(), 30, 1) != drawn(drawn_questions(), 30, 2)


def test_every_drawn_request_depends_on_nothing_but_itself(questions: list[Turns]) -> None:
    requests = [request for question in questions for request in question.requests]
    assert [request for request in requests if not is_sound(request)] == []
    assert {
        "script",
        "adapter",
        "cache_salt",
        "abort",
        "token ids",
        "n",
        "stop",
    } <= frozenset().union(*(request.traits for request in requests))


def test_simpler_questions_are_sound_too(questions: list[Turns]) -> None:
    simpler = [
        one
        for question in questions[:40]
        for one in smaller_questions(question, Problem("text", at=0))
    ]
    assert simpler
    assert all(is_sound(request) for question in simpler for request in question.requests)


def test_a_question_survives_its_file(questions: list[Turns]) -> None:
    for question in questions:
        assert codec.decode(Turns, codec.encode(question), "") == question


def test_a_pair_is_not_asked_for_what_it_does_not_have() -> None:
    request = Request(
        "Hi", ("a",), True, {"max_tokens": 1, "min_p": 0.5}, ("mine", 1), 2, "salt", 3
    )
    fitted = {pair.name: pair.fitted(Turns(((request,),))) for pair in pairs("vllm-0.11.2")}
    kept = {name: question.requests[0].traits for name, question in fitted.items() if question}
    assert "adapter" in kept["prefix-cache"]
    assert "adapter" not in kept["batch"]
    assert "abort" in kept["stream"]
    assert "abort" not in kept["http"]
    assert "priority" in kept["priority"]
    assert "min_p" not in kept["speculation"]


def test_another_release_is_not_asked_for_random_answers() -> None:
    release = pairs("vllm-0.11.2")[-1]
    seeded = Request("Hi", (), True, {"max_tokens": 1, "temperature": 1.0, "seed": 1})
    greedy = Request("Hi", (), True, {"max_tokens": 1, "temperature": 0.0})
    assert release.fitted(Turns(((seeded,),))) is None
    assert release.fitted(Turns(((greedy, seeded),))) == Turns(((greedy,),))
