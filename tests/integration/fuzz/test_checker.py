"""Asking a backend in a child: what is right, and every way of going wrong, with a stand-in for lm-format-enforcer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.settings import Settings
from pytest_vllm_regress.errors import Unsupported
from pytest_vllm_regress.fuzz.checker import Allowance, Checker
from pytest_vllm_regress.fuzz.oracle import Outcome, Question
from pytest_vllm_regress.util.deadline import Deadline
from tests.conftest import MakeTarget
from tests.helpers import ROOT

STUB = ROOT / "tests" / "helpers" / "grammar_stub.py"


@pytest.fixture(scope="module")
def checker(make_target: MakeTarget) -> Iterator[Checker]:
    python = make_target(**{"lm-format-enforcer": "0.10.11"})
    site = next((python.parent.parent / "lib").glob("python3.*/site-packages"))
    (site / "lmformatenforcer.py").write_text(STUB.read_text())
    session = Session(Settings(), lambda phase, seconds: Deadline.after(phase, seconds or 30))
    yield Checker(session, str(python), "lm-format-enforcer", Allowance(seconds=3.0, memory=300 * 2**20))
    session.close()


def question(title: str = "", **more: object) -> Question:
    return Question({"type": "string", "title": title}, **{"valid": ('"ab"',), "invalid": ("1",), **more})  # type: ignore[arg-type]


def test_a_backend_that_answers_well_passes(checker: Checker) -> None:
    assert checker.ask(question()) == ()
    assert checker.version == "0.10.11"


def test_texts_refused_and_accepted_wrongly_are_told_apart(checker: Checker) -> None:
    (refused,) = checker.ask(question(valid=('"abc"',), walks=0))
    assert (refused.outcome, refused.key, refused.text) == (Outcome.REFUSED_VALID, "both ways", '"abc"')
    assert "'c' (character 3)" in refused.words
    schema = {"type": "string", "maxLength": 1}
    (accepted, *_) = checker.ask(Question(schema, (), ('"ab"',), walks=0))
    assert (accepted.outcome, accepted.key) == (Outcome.ACCEPTED_INVALID, "maxLength")
    assert "by characters and by tokens" in accepted.words


def test_a_walk_that_breaks_the_schema_is_seen(checker: Checker) -> None:
    found = checker.ask(Question({"type": "string", "minLength": 9}, walks=3))
    assert {(each.outcome, each.key) for each in found} == {(Outcome.ACCEPTED_INVALID, "minLength")}


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("hang", Outcome.TIME_OUT),
        ("eat", Outcome.OUT_OF_MEMORY),
        ("no memory", Outcome.OUT_OF_MEMORY),
        ("die", Outcome.CRASH),
        ("late crash", Outcome.CRASH),
        ("refuse", Outcome.COMPILE_ERROR),
        ("dead", Outcome.DEAD_END),
        ("lose", Outcome.STATE_LOST),
    ],
)
def test_every_fault_has_its_class_and_the_next_question_is_answered(
    checker: Checker, fault: str, outcome: Outcome
) -> None:
    texts = {"valid": (), "invalid": ()} if fault == "dead" else {}
    found = checker.ask(question(fault, **texts))
    assert found[0].outcome is outcome, found
    assert checker.ask(question()) == ()


def test_a_message_that_quotes_the_schema_has_one_kind(checker: Checker) -> None:
    (one,), (other,) = checker.ask(question("refuse")), checker.ask(Question({"title": "refuse", "maxLength": 12}))
    assert one.key == other.key == "ValueError cannot read"


def test_a_backend_that_is_missing_or_of_another_make_is_unsupported(checker: Checker, make_target: MakeTarget) -> None:
    session = Session(Settings(), lambda phase, seconds: Deadline.after(phase, seconds or 30))
    python = make_target(**{"lm-format-enforcer": "0.1"})
    try:
        with pytest.raises(Unsupported, match="has no llguidance"):
            Checker(session, str(python), "llguidance")
        site = next((python.parent.parent / "lib").glob("python3.*/site-packages"))
        (site / "lmformatenforcer.py").write_text("")
        with pytest.raises(Unsupported, match=r"lm-format-enforcer 0\.1 cannot be driven: .*ImportError"):
            Checker(session, str(python), "lm-format-enforcer")
    finally:
        session.close()
