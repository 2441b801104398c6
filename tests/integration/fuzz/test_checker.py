"""A backend in a child: correct answers and every kind of failure, with a stub for
lm-format-enforcer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.settings import Limits, Settings
from pytest_vllm_regress.errors import LimitExceeded, Unsupported
from pytest_vllm_regress.fuzz.schemas.backends import Allowance, BackendChecker, limit_problem
from pytest_vllm_regress.fuzz.schemas.schema_oracle import Outcome, SchemaQuestion
from pytest_vllm_regress.util.deadline import Deadline
from tests.conftest import MakeTarget
from tests.helpers import ROOT

STUB = ROOT / "tests" / "helpers" / "grammar_stub.py"


@pytest.fixture(scope="module")
def checker(make_target: MakeTarget) -> Iterator[BackendChecker]:
    python = make_target(**{"lm-format-enforcer": "0.10.11"})
    site = next((python.parent.parent / "lib").glob("python3.*/site-packages"))
    (site / "lmformatenforcer.py").write_text(STUB.read_text())
    limits = Limits(processes=64, option_names={})
    session = Session(
        Settings(limits=limits), lambda phase, seconds: Deadline.after(phase, seconds or 60)
    )
    yield BackendChecker(
        session, str(python), "lm-format-enforcer", Allowance(seconds=60.0, memory=300 * 2**20)
    )
    session.close()


def question(title: str = "", **more: object) -> SchemaQuestion:
    return SchemaQuestion(
        {"type": "string", "title": title},
        **{"valid": ('"ab"',), "invalid": ("1",), **more},  # type: ignore[arg-type]
    )


def test_a_backend_without_faults_passes(checker: BackendChecker) -> None:
    assert checker.ask(question()) == ()
    assert checker.version == "0.10.11"


def test_refused_valid_and_accepted_invalid_texts_are_distinguished(
    checker: BackendChecker,
) -> None:
    (refused,) = checker.ask(question(valid=('"abc"',), walks=0))
    assert (refused.kind, refused.key, refused.text) == (
        Outcome.REFUSED_VALID,
        "both ways",
        '"abc"',
    )
    assert "'c' (character 3)" in refused.words
    schema = {"type": "string", "maxLength": 1}
    (accepted, *_) = checker.ask(SchemaQuestion(schema, (), ('"ab"',), walks=0))
    assert (accepted.kind, accepted.key) == (Outcome.ACCEPTED_INVALID, "maxLength")
    assert "by characters and by tokens" in accepted.words


def test_a_walk_that_violates_the_schema_is_reported(checker: BackendChecker) -> None:
    problems = checker.ask(SchemaQuestion({"type": "string", "minLength": 9}, walks=3))
    assert {(problem.kind, problem.key) for problem in problems} == {
        (Outcome.ACCEPTED_INVALID, "minLength")
    }


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
def test_every_fault_has_its_outcome_and_the_next_question_is_answered(
    checker: BackendChecker, fault: str, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    if outcome is Outcome.TIME_OUT:
        monkeypatch.setattr(
            checker, "allowance", Allowance(seconds=2.0, memory=checker.allowance.memory)
        )
    texts = {"valid": (), "invalid": ()} if fault == "dead" else {}
    problems = checker.ask(question(fault, **texts))
    assert problems[0].kind == outcome, problems
    assert checker.ask(question()) == ()


def test_limits_are_told_apart_and_named_with_the_options_of_this_command(
    checker: BackendChecker,
) -> None:
    (memory,) = checker.ask(question("eat"))
    assert memory.kind == Outcome.OUT_OF_MEMORY
    assert "300 MiB is the limit (--limit memory of vllm-regress fuzz schemas)" in memory.words
    (processes,) = checker.ask(question("multiply"))
    assert (processes.kind, processes.key) == (Outcome.CRASH, "processes")
    assert processes.words.endswith("and 64 is the limit")  # no option sets it


def test_the_end_of_the_session_is_no_fault_of_the_backend() -> None:
    with pytest.raises(LimitExceeded):
        limit_problem(
            LimitExceeded("the session's budget is used up", phase="probe", limit="session")
        )


def test_messages_that_quote_different_schemas_have_the_same_key(checker: BackendChecker) -> None:
    (one,), (other,) = (
        checker.ask(question("refuse")),
        checker.ask(SchemaQuestion({"title": "refuse", "maxLength": 12})),
    )
    assert one.key == other.key == "ValueError cannot read"


def test_a_missing_or_incompatible_backend_is_unsupported(
    checker: BackendChecker, make_target: MakeTarget
) -> None:
    session = Session(Settings(), lambda phase, seconds: Deadline.after(phase, seconds or 60))
    python = make_target(**{"lm-format-enforcer": "0.1"})
    try:
        with pytest.raises(Unsupported, match="has no llguidance"):
            BackendChecker(session, str(python), "llguidance")
        site = next((python.parent.parent / "lib").glob("python3.*/site-packages"))
        (site / "lmformatenforcer.py").write_text("")
        with pytest.raises(
            Unsupported, match=r"lm-format-enforcer 0\.1 cannot be used: .*ImportError"
        ):
            BackendChecker(session, str(python), "lm-format-enforcer")
    finally:
        session.close()
