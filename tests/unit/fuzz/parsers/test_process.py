"""A question that hangs or kills the parsers' process is found among those that were asked with it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_vllm_regress.engines.inputs.formats import Meaning
from pytest_vllm_regress.errors import ChildDied, DeadlineExceeded
from pytest_vllm_regress.fuzz.parsers.parser_process import with_failures
from pytest_vllm_regress.fuzz.parsers.parser_question import (
    ParserQuestion,
    ParserReply,
    observations,
)
from tests.unit.fuzz.parsers.stand_in import FORM, StandIn

QUESTIONS = [ParserQuestion.of(Meaning(content=text), FORM) for text in ("a", "bad", "c")]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DeadlineExceeded("no answer within 30 s", phase="probe"), "no answer"),
        (ChildDied("died (SIGSEGV)", phase="probe"), "death of the process"),
    ],
)
def test_the_question_that_hangs_or_kills_is_answered_with_an_error(
    error: Exception, kind: str
) -> None:
    parser = StandIn()

    def ask(questions: Sequence[ParserQuestion]) -> list[ParserReply]:
        if any("bad" in question.text for question in questions):
            raise error
        return parser(questions)

    replies = with_failures(ask, QUESTIONS)
    found = [
        observations(question, reply) for question, reply in zip(QUESTIONS, replies, strict=True)
    ]
    assert (found[0], found[2]) == ([], [])
    assert {problem.kind for _, problem in found[1]} == {kind}
