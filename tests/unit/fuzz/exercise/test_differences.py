"""Differences between two sets of answers: where, how grave, and which are shown."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.fuzz.exercise.differences import (
    Grade,
    clearest,
    differences,
)

ANSWER = {"finish": "stop", "outputs": [{"text": "one two", "tokens": [1, 2]}], "steps": "0-3"}


def test_equal_answers_differ_in_nothing() -> None:
    assert differences({"a/1": ANSWER}, {"a/1": dict(ANSWER)}) == []


@pytest.mark.parametrize(
    ("after", "grade", "where"),
    [
        ({**ANSWER, "steps": "0-4"}, Grade.COURSE, "steps"),
        ({**ANSWER, "finish": "length", "steps": "0-4"}, Grade.RESULT, "finish"),
        (
            {**ANSWER, "outputs": [{"text": "one", "tokens": [1, 2]}]},
            Grade.RESULT,
            "outputs[0].text",
        ),
        ({"error": ["ValueError", "no"]}, Grade.BREAKS, "error"),
        ({"status": 500, "body": {}}, Grade.BREAKS, "status"),
        ({**ANSWER, "failed": True}, Grade.BREAKS, "failed"),
        ({**ANSWER, "outputs": [{"finish": "error"}]}, Grade.BREAKS, "outputs[0].finish"),
    ],
)
def test_the_most_telling_member_is_named(
    after: dict[str, object], grade: Grade, where: str
) -> None:
    (one,) = differences({"a/1": ANSWER}, {"a/1": after})
    assert (one.grade, one.where) == (grade, where)


def test_another_error_or_none_is_no_break() -> None:
    before = {"a/1": {"status": 400}, "a/2": {"error": ["ValueError", "x"]}}
    after = {"a/1": {"status": 404}, "a/2": ANSWER}
    assert {one.grade for one in differences(before, after)} == {Grade.RESULT}


def test_what_is_left_in_an_engine_breaks() -> None:
    def grade(before: dict[str, int], after: dict[str, int]) -> Grade:
        (one,) = differences({"a/left": {"leftovers": before}}, {"a/left": {"leftovers": after}})
        return one.grade

    assert grade({}, {"scheduler.requests": 1}) is Grade.BREAKS
    assert grade({"parents": 1}, {"parents": 1, "scheduler.requests": 1}) is Grade.BREAKS
    assert grade({"parents": 1}, {"parents": 2}) is Grade.BREAKS
    assert grade({"parents": 2}, {"parents": 1}) is Grade.RESULT


def test_an_answer_that_is_missing_has_the_error_of_its_act() -> None:
    before = {"a/1": ANSWER, "b/1": ANSWER}
    found = differences(before, {"a/end": {"error": ["hang", "after 90 s"]}, "b/1": ANSWER})
    by_name = {one.name: one for one in found}
    assert by_name.keys() == {"a/1", "a/end"}
    assert "hang" in by_name["a/1"].after
    assert {one.grade for one in found} == {Grade.BREAKS}


def test_what_varies_by_itself_is_not_compared() -> None:
    assert differences({"a/1": None}, {"a/1": ANSWER}) == []


def test_one_difference_of_each_group_is_shown_first() -> None:
    before = {f"s/a/{number}": ANSWER for number in range(5)}
    after = {
        name: {**ANSWER, "steps": "9"} if name != "s/a/3" else {**ANSWER, "finish": "length"}
        for name in before
    }
    shown = clearest(differences(before, after), 2)
    assert [one.where for one in shown] == ["finish", "steps"]


def test_long_texts_are_shown_from_where_they_differ() -> None:
    old, new = "x" * 500 + "old" + "y" * 500, "x" * 500 + "new" + "y" * 500
    (one,) = differences({"a": {"text": old}}, {"a": {"text": new}})
    assert "old" in one.before and "new" in one.after
    assert len(one.before) < 120
