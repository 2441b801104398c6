"""Schemas asked of whole engines, and findings asked again in environments of a package alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.spec import Front
from pytest_vllm_regress.engines.standalone import bare_session
from pytest_vllm_regress.fuzz.artefact import Answer, Artefact, load, replay
from pytest_vllm_regress.fuzz.checker import Allowance, Checker
from pytest_vllm_regress.fuzz.on_engine import FRONTS, EngineChecker
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
    with bare_session() as made:
        yield made


@pytest.mark.parametrize("front", FRONTS)
def test_an_engine_is_asked_and_lives_on(session: Session, front: Front) -> None:
    asker = EngineChecker(session, session.target(ENV), "xgrammar", front)
    assert asker.ask(Question(OBJECT)) == ()
    (refused,) = asker.ask(Question({"type": "no such type"}))
    assert refused.outcome is Outcome.COMPILE_ERROR
    assert refused.words.startswith("refused by vLLM")
    wrong = asker.ask(
        Question({"type": "integer", "multipleOf": 1000003}, walks=4)
    )  # vLLM 0.8.5 takes it and lets xgrammar ignore it
    assert {(each.outcome, each.key) for each in wrong} == {(Outcome.ACCEPTED_INVALID, "multipleOf")}
    assert asker.ask(Question(OBJECT)) == ()


def test_an_engine_that_dies_is_a_crash_and_the_next_one_answers(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker = EngineChecker(session, session.target(ENV), "xgrammar", "offline")
    with monkeypatch.context() as patch:

        def dies(*arguments: object) -> list[str]:
            engine = asker._engine()
            engine.child.kill()
            engine.check()
            raise AssertionError("it answered")

        patch.setattr(asker, "_offline", dies)
        (crash,) = asker.ask(Question(OBJECT))
    assert crash.outcome is Outcome.CRASH
    assert asker.ask(Question(OBJECT)) == ()


def test_a_plain_request_that_gets_too_little_is_not_overlooked(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker = EngineChecker(session, session.target(ENV), "xgrammar", "offline")
    monkeypatch.setattr("pytest_vllm_regress.fuzz.on_engine._PLAIN_TOKENS", 9)
    (hurt,) = asker.ask(Question(OBJECT))
    assert hurt.outcome is Outcome.CRASH
    assert "a plain request beside a constrained one brought 8 tokens, not 9" in hurt.words


@pytest.fixture(scope="module")
def ask(session: Session) -> Callable[[Artefact], tuple[Answer, str]]:
    """Asks again, each backend in one child as long as it lives."""
    checkers: dict[tuple[str, str, Allowance], Checker] = {}

    def replayed(finding: Artefact) -> tuple[Answer, str]:
        key = (finding.environment, finding.backend, finding.patience)
        if key not in checkers:
            checkers[key] = Checker(session, *key)
        return replay(finding, checkers[key])

    return replayed


@pytest.mark.parametrize(
    "name", sorted(path.name for path in FINDINGS.glob("*.json") if "vllm" not in load(path).environment)
)
def test_a_finding_still_fails(ask: Callable[[Artefact], tuple[Answer, str]], name: str) -> None:
    """In the environment it was found in: a package alone, built in seconds."""
    answer, words = ask(load(FINDINGS / name))
    assert answer is Answer.STILL_FAILS, words
