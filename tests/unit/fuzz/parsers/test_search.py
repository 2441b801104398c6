"""The search reports nothing of a parser that is right, and finds, shrinks and tells apart planted
faults."""

from __future__ import annotations

import functools

from pytest_vllm_regress.fuzz.parsers.cuts import CutKind
from pytest_vllm_regress.fuzz.parsers.meaning import Meaning, drawn, features
from pytest_vllm_regress.fuzz.parsers.search import Reduced, search
from tests.unit.fuzz.parsers.stand_in import (
    FORM,
    Fault,
    StandIn,
    loses_calls_that_come_at_once,
    never_ends_without_content,
    raises_at_letters_beyond_ascii,
)


@functools.cache
def meanings() -> list[Meaning]:
    return drawn(60, 1)


def findings_of(fault: Fault) -> list[Reduced]:
    return search(meanings(), FORM, StandIn(fault)).findings


def test_nothing_is_reported_of_a_parser_that_is_right() -> None:
    parser = StandIn()
    result = search(meanings(), FORM, parser)
    assert (result.findings, sum(result.wrong.values())) == ([], 0)
    assert result.asked == parser.questions > 30


def test_a_lost_call_is_shrunk_to_the_least_text_in_one_piece() -> None:
    (found,) = findings_of(loses_calls_that_come_at_once)
    assert found.observed.problem.kind == "all calls lost"
    assert found.observed.cut is not None
    assert len(found.observed.cut[1].pieces) == 1
    assert CutKind.ONCE in found.kinds
    assert CutKind.CHARACTERS not in found.kinds


def test_an_exception_is_shrunk_to_the_letter_that_raises_it() -> None:
    (found,) = findings_of(raises_at_letters_beyond_ascii)
    assert found.observed.problem.kind == "raises KeyError in parse"
    (call,) = found.observed.question.meaning.calls
    (value,) = call.arguments.values()
    assert not str(value).isascii()
    assert len(str(value)) <= 5
    assert set(found.kinds) == set(CutKind)
    assert found.observed.cut is not None
    assert len(found.observed.cut[1].pieces) == 1


def test_a_stream_without_an_end_is_a_finding() -> None:
    assert {found.observed.problem.kind for found in findings_of(never_ends_without_content)} == {
        "no end"
    }


def test_known_findings_are_not_reported_again() -> None:
    known = findings_of(loses_calls_that_come_at_once)
    assert search(meanings(), FORM, StandIn(loses_calls_that_come_at_once), known).findings == []


def test_the_same_seed_draws_the_same_answers() -> None:
    assert [meaning.to_text() for meaning in drawn(20, 7)] == [
        meaning.to_text() for meaning in drawn(20, 7)
    ]
    assert drawn(20, 7) != drawn(20, 8)


def test_drawn_answers_have_what_breaks_parsers() -> None:
    drawn_features = frozenset[str]().union(*map(features, drawn(200, 1)))
    assert {
        "reasoning",
        "content",
        "several calls",
        "no arguments",
        "quote",
        "backslash",
        "beyond ASCII",
    } <= drawn_features
    assert {
        "negative number",
        "nesting",
        "empty object",
        "string that reads as another type",
    } <= drawn_features
