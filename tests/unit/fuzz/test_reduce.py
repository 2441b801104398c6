"""The reducer of all hunters: how far it gets, and what it may cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from pytest_vllm_regress.fuzz.finding import Problem
from pytest_vllm_regress.fuzz.reduce import Effort, reduce, smaller_values

BAD = Problem("has a seven")


class Target:
    """Shows its problem for lists that contain 7; ``asked``: every question."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def look(self, questions: Sequence[list[int]]) -> list[list[tuple[list[int], Problem]]]:
        self.asked += questions
        return [[(question, BAD)] if 7 in question else [] for question in questions]


def without_one(question: list[int], problem: Problem) -> Iterator[list[int]]:
    for at in range(len(question)):
        yield [*question[:at], *question[at + 1 :]]


def test_the_smallest_question_is_found_and_none_is_asked_twice() -> None:
    target = Target()
    smallest, problem = reduce([*range(10)], BAD, without_one, target.look, Effort(questions=1000))
    assert (smallest, problem) == ([7], BAD)
    assert len({tuple(question) for question in target.asked}) == len(target.asked)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("questions", [0, 1, 5])
def test_no_more_questions_are_asked_than_allowed(questions: int, batch: int) -> None:
    target = Target()
    smallest, _ = reduce(
        [*range(10)], BAD, without_one, target.look, Effort(questions=questions, batch=batch)
    )
    assert len(target.asked) == questions
    assert 7 in smallest


def test_numbers_at_the_borders_of_types_are_tried() -> None:
    tried = {value for value in smaller_values(2**80) if isinstance(value, int)}
    assert {2**31, 2**63, 2**64, 2**70} <= tried


def test_a_list_of_three_is_first_tried_with_its_first_member_alone() -> None:
    lists = [value for value in smaller_values([5, 6, 7]) if isinstance(value, list)]
    assert lists[0] == [5]
    assert [5, 6] in lists
