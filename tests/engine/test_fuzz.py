"""Fuzzing of whole engines, and replays of the shipped findings in environments that hold one
package."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.spec import Front
from pytest_vllm_regress.engines.standalone import bare_session
from pytest_vllm_regress.fuzz.artefact import Answer, Artefact, load, replay
from pytest_vllm_regress.fuzz.checker import Allowance, Checker
from pytest_vllm_regress.fuzz.engine_checker import FRONTS, EngineChecker
from pytest_vllm_regress.fuzz.oracle import Outcome, Question
from tests.helpers import ROOT

pytestmark = pytest.mark.engine
ENV = "vllm-0.8.5"
FINDINGS = ROOT / "docs" / "findings"
OBJECT = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with bare_session() as session:
        yield session


@pytest.mark.parametrize("front", FRONTS)
def test_an_engine_survives_the_questions(session: Session, front: Front) -> None:
    checker = EngineChecker(session, session.target(ENV), "xgrammar", front)
    assert checker.ask(Question(OBJECT)) == ()
    (refused,) = checker.ask(Question({"type": "no such type"}))
    assert refused.outcome is Outcome.COMPILE_ERROR
    assert refused.words.startswith("refused by vLLM")
    problems = checker.ask(
        Question({"type": "integer", "multipleOf": 1000003}, walks=4)
    )  # vLLM 0.8.5 accepts it, and xgrammar ignores it
    assert {(problem.outcome, problem.key) for problem in problems} == {
        (Outcome.ACCEPTED_INVALID, "multipleOf")
    }
    assert checker.ask(Question(OBJECT)) == ()


def test_an_engine_that_dies_counts_as_a_crash_and_is_replaced(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = EngineChecker(session, session.target(ENV), "xgrammar", "offline")
    with monkeypatch.context() as patch:

        def dies(*arguments: object) -> list[str]:
            engine = checker._engine()
            engine.child.kill()
            engine.check()
            raise AssertionError("it answered")

        patch.setattr(checker, "_offline", dies)
        (crash,) = checker.ask(Question(OBJECT))
    assert crash.outcome is Outcome.CRASH
    assert checker.ask(Question(OBJECT)) == ()


def test_a_plain_request_with_too_few_tokens_is_reported(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = EngineChecker(session, session.target(ENV), "xgrammar", "offline")
    monkeypatch.setattr("pytest_vllm_regress.fuzz.engine_checker._PLAIN_TOKENS", 9)
    (hurt,) = checker.ask(Question(OBJECT))
    assert hurt.outcome is Outcome.CRASH
    assert "a plain request next to a constrained one returned 8 tokens, not 9" in hurt.words


@pytest.fixture(scope="module")
def ask(session: Session) -> Callable[[Artefact], tuple[Answer, str]]:
    """Replay a finding. All findings of a backend share one child."""
    checkers: dict[tuple[str, str, Allowance], Checker] = {}

    def replayed(finding: Artefact) -> tuple[Answer, str]:
        key = (finding.environment, finding.backend, finding.replay_allowance)
        if key not in checkers:
            checkers[key] = Checker(session, *key)
        return replay(finding, checkers[key])

    return replayed


@pytest.mark.parametrize(
    "name",
    sorted(path.name for path in FINDINGS.glob("*.json") if "vllm" not in load(path).environment),
)
def test_a_finding_still_fails(ask: Callable[[Artefact], tuple[Answer, str]], name: str) -> None:
    """It is replayed in the environment where it was found, which holds one package and is built in
    seconds."""
    answer, words = ask(load(FINDINGS / name))
    assert answer is Answer.STILL_FAILS, words
