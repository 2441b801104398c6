"""The search reports nothing of a parser that is right, and finds, shrinks and tells apart planted
faults."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_vllm_regress.engines.inputs.formats import Format
from pytest_vllm_regress.fuzz.campaign import StepSearch
from pytest_vllm_regress.fuzz.drawing import drawn
from pytest_vllm_regress.fuzz.hunter import CampaignPlan
from pytest_vllm_regress.fuzz.parsers.meaning import features, meanings
from pytest_vllm_regress.fuzz.parsers.parser_hunter import ParserFinding, ParserHunter, ReadFormat
from pytest_vllm_regress.fuzz.parsers.parser_process import ParserName
from pytest_vllm_regress.fuzz.parsers.parser_question import CutKind, ParserQuestion, ParserReply
from tests.unit.fuzz.parsers.stand_in import (
    FORM,
    Fault,
    StandIn,
    loses_calls_that_come_at_once,
    never_ends_without_content,
    raises_at_letters_beyond_ascii,
)


class Process:
    """Stands in for ``ParserProcess``."""

    def __init__(self, parser: StandIn) -> None:
        self.parser = parser

    def ask(
        self, name: ParserName, form: Format, questions: Sequence[ParserQuestion]
    ) -> list[ParserReply]:
        return self.parser(questions)


def search(
    parser: StandIn, known: Sequence[ParserFinding] = ()
) -> tuple[list[ParserFinding], int, int]:
    """Ask a parser. Return the findings, and the number of questions and of problems."""
    part = ReadFormat(ParserName("tool", "one"), FORM)
    hunter = ParserHunter([Process(parser)], "vllm-0.11.2", {})  # type: ignore[list-item]
    found = StepSearch(hunter, part, 0, known)
    questions = hunter.draw(part, CampaignPlan(seed=0, examples=60), 1)
    problems = [
        shown
        for reply in hunter.ask(hunter.lanes.first, part, questions)
        for shown in reply.problems
    ]
    for shown in problems:
        found.note(*shown)
    return found.found, len(questions), len(problems)


def findings_of(fault: Fault) -> list[ParserFinding]:
    return search(StandIn(fault))[0]


def test_nothing_is_reported_of_a_parser_that_is_right() -> None:
    parser = StandIn()
    findings, asked, wrong = search(parser)
    assert (findings, wrong) == ([], 0)
    assert asked == parser.questions > 30


def test_a_lost_call_is_shrunk_to_the_least_text_in_one_piece() -> None:
    (found,) = findings_of(loses_calls_that_come_at_once)
    assert found.problem.kind == "all calls lost"
    (cut,) = found.question.cuts
    assert len(cut.pieces) == 1
    assert CutKind.ONCE in found.kinds
    assert CutKind.CHARACTERS not in found.kinds


def test_an_exception_is_shrunk_to_the_letter_that_raises_it() -> None:
    (found,) = findings_of(raises_at_letters_beyond_ascii)
    assert found.problem.kind == "raises KeyError in parse"
    (call,) = found.question.meaning.calls
    (value,) = call.arguments.values()
    assert not str(value).isascii()
    assert len(str(value)) <= 5
    assert set(found.kinds) == set(CutKind)
    (cut,) = found.question.cuts
    assert len(cut.pieces) == 1


def test_a_stream_without_an_end_is_a_finding() -> None:
    assert {found.problem.kind for found in findings_of(never_ends_without_content)} == {"no end"}


def test_known_findings_are_not_reported_again() -> None:
    known = findings_of(loses_calls_that_come_at_once)
    assert search(StandIn(loses_calls_that_come_at_once), known)[0] == []


def test_the_same_seed_draws_the_same_answers() -> None:
    first = drawn(meanings(), 20, 7)
    drawn.cache_clear()
    assert first == drawn(meanings(), 20, 7) != drawn(meanings(), 20, 8)


def test_drawn_answers_have_what_breaks_parsers() -> None:
    drawn_features = frozenset[str]().union(*map(features, drawn(meanings(), 100, 1)))
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
