"""Fuzzing of whole engines, and replays of the shipped findings in environments that hold one
package."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import pytest

from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.spec import Front
from pytest_vllm_regress.engines.standalone import bare_session
from pytest_vllm_regress.fuzz.finding import ReplayAnswer
from pytest_vllm_regress.fuzz.hunter import load
from pytest_vllm_regress.fuzz.schemas.constrained import FRONTS, ConstrainedEngine
from pytest_vllm_regress.fuzz.schemas.schema_hunter import SchemaHunter
from pytest_vllm_regress.fuzz.schemas.schema_oracle import Outcome, SchemaQuestion
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
    checker = ConstrainedEngine(session, session.target(ENV), "xgrammar", front)
    assert checker.ask(SchemaQuestion(OBJECT)) == ()
    (refused,) = checker.ask(SchemaQuestion({"type": "no such type"}))
    assert refused.kind == Outcome.COMPILE_ERROR
    assert refused.words.startswith("refused by vLLM")
    problems = checker.ask(
        SchemaQuestion({"type": "integer", "multipleOf": 1000003}, walks=4)
    )  # vLLM 0.8.5 accepts it, and xgrammar ignores it
    assert {problem.group for problem in problems} == {(Outcome.ACCEPTED_INVALID, "multipleOf")}
    assert checker.ask(SchemaQuestion(OBJECT)) == ()


def test_an_engine_that_dies_counts_as_a_crash_and_is_replaced(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = ConstrainedEngine(session, session.target(ENV), "xgrammar", "offline")
    with monkeypatch.context() as patch:

        def dies(*arguments: object) -> list[str]:
            engine = checker.kept.get()
            engine.child.kill()
            engine.check()
            raise AssertionError("it answered")

        patch.setattr(checker, "_offline", dies)
        (crash,) = checker.ask(SchemaQuestion(OBJECT))
    assert crash.kind == Outcome.CRASH
    assert checker.ask(SchemaQuestion(OBJECT)) == ()


def test_a_plain_request_with_too_few_tokens_is_reported(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = ConstrainedEngine(session, session.target(ENV), "xgrammar", "offline")
    monkeypatch.setattr("pytest_vllm_regress.fuzz.schemas.constrained._PLAIN_TOKENS", 9)
    (hurt,) = checker.ask(SchemaQuestion(OBJECT))
    assert hurt.kind == Outcome.CRASH
    assert "a plain request next to a constrained one returned 8 tokens, not 9" in hurt.words


@pytest.fixture(scope="module")
def hunters(session: Session) -> Iterator[Callable[[str], SchemaHunter]]:
    """Return the hunter of an environment, in which all findings of a backend share one child."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def of(environment: str) -> SchemaHunter:
            hunter = SchemaHunter.of([session], environment)
            stack.enter_context(hunter.lanes)
            return hunter

        yield of


@pytest.mark.parametrize(
    "name",
    sorted(path.name for path in FINDINGS.glob("*.json") if "vllm" not in load(path).environment),
)
def test_a_finding_still_fails(hunters: Callable[[str], SchemaHunter], name: str) -> None:
    """It is replayed in the environment where it was found, which holds one package and is built in
    seconds."""
    finding = load(FINDINGS / name)
    answer, words = hunters(finding.environment).replay(finding)
    assert answer is ReplayAnswer.STILL_FAILS, words
