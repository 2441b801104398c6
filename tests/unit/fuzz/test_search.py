"""The search finds, distinguishes and shrinks planted faults.

The same seed asks the same questions.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_vllm_regress.fuzz.finding import Finding, minimal_question
from pytest_vllm_regress.fuzz.oracle import Outcome, Problem, Question
from pytest_vllm_regress.fuzz.search import Search, SearchPlan, SearchResult
from pytest_vllm_regress.schemas import PROFILES, Budget, features, validator
from pytest_vllm_regress.schemas.features import walk


def planted(question: Question) -> tuple[Problem, ...]:
    """Cannot compile a pattern, refuses negative numbers, and forgets maxItems."""
    nodes = [node for node in walk(question.schema) if isinstance(node, dict)]
    problems = []
    if any("pattern" in node for node in nodes):
        problems.append(Problem(Outcome.COMPILE_ERROR, "ValueError pattern", "no patterns"))
    problems += [
        Problem(Outcome.REFUSED_VALID, "both ways", text, text)
        for text in question.valid
        if "-" in text and text.strip("-").isdigit()
    ]
    if any("maxItems" in node for node in nodes):
        problems.append(Problem(Outcome.ACCEPTED_INVALID, "maxItems", "too many", "[1, 1, 1]"))
    return tuple(problems)


def search(
    ask: Any = planted, profile: str = "full", examples: int = 120, **options: Any
) -> Search:
    return Search(ask, SearchPlan(PROFILES[profile], Budget(), examples, seed=1), **options)


def questions_of_search(profile: str, examples: int) -> list[Question]:
    """Return the questions of a search that finds no problem."""
    questions: list[Question] = []

    def record(question: Question) -> tuple[Problem, ...]:
        questions.append(question)
        return ()

    search(record, profile, examples=examples).run()
    return questions


@pytest.fixture(scope="module")
def result() -> SearchResult:
    """Result of a search for the planted faults."""
    return search().run()


@pytest.mark.slow
def test_planted_faults_are_found_and_shrunk_to_their_minimum(result: SearchResult) -> None:
    minima = {finding.problem.key: finding.question.schema for finding in reversed(result.findings)}
    assert minima["ValueError pattern"] == {"type": "string", "pattern": "^[a-z]*$"}
    assert minima["maxItems"] == {"type": "array", "maxItems": 0}
    assert minima["both ways"] == {"type": "integer"}
    assert result.counts[Outcome.PASSING] > 30
    assert result.checks > result.schemas > 120


@pytest.mark.slow
def test_known_findings_are_not_reported_again(result: SearchResult) -> None:
    again = search(known=tuple(result.findings)).run()
    assert not again.findings


def test_a_search_ends_at_its_deadline_and_keeps_its_findings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(
        "pytest_vllm_regress.fuzz.search.time", SimpleNamespace(monotonic=lambda: now[0])
    )

    def slow(question: Question) -> tuple[Problem, ...]:
        now[0] += 0.02
        return planted(question)

    result = search(slow, until=101.0).run()
    assert 101.0 < now[0] < 101.03
    assert result.schemas == 51
    assert result.findings


def test_problems_that_do_not_repeat_are_kept() -> None:
    questions: list[Question] = []

    def flaky(question: Question) -> tuple[Problem, ...]:
        questions.append(question)
        return (Problem(Outcome.CRASH, "flaky", "once"),) if len(questions) == 5 else ()

    result = search(flaky, examples=40).run()
    assert [finding.problem.key for finding in result.findings] == ["flaky"]


@pytest.mark.parametrize("profile", ["lm-format-enforcer", "llguidance", "outlines", "xgrammar"])
def test_questions_stay_inside_the_profile_and_their_texts_are_valid_or_invalid_as_stated(
    profile: str,
) -> None:
    questions = questions_of_search(profile, 60)
    assert len(questions) > 30
    for question in questions:
        checker = validator(question.schema)
        assert features(question.schema) <= {
            feature.value for feature in PROFILES[profile].features
        }
        assert question.valid
        assert all(checker.is_valid(json.loads(text)) for text in question.valid)
        assert not any(checker.is_valid(json.loads(text)) for text in question.invalid)


def test_a_closed_profile_draws_only_declared_properties_in_schema_order() -> None:
    for question in questions_of_search("outlines", 80):
        schema = question.schema
        if schema.get("type") == "object" and "properties" in schema:
            order = list(schema["properties"])
            for text in question.valid:
                names = list(json.loads(text))
                assert names == [name for name in order if name in names]


def test_a_minimal_question_keeps_only_the_text_that_matters() -> None:
    question = Question({"type": "integer"}, ("1", "2"), ("x", "y"), walks=2)
    walked = Finding(question, Problem(Outcome.ACCEPTED_INVALID, "type", "", "1.5"))
    assert minimal_question(walked) == Question({"type": "integer"}, ("1",), ("1.5",), walks=2)
    accepted = Finding(question, Problem(Outcome.ACCEPTED_INVALID, "type", "", "y"))
    assert minimal_question(accepted) == Question({"type": "integer"}, ("1",), ("y",), walks=0)
    refused = Finding(question, Problem(Outcome.REFUSED_VALID, "both ways", "", "2"))
    assert minimal_question(refused) == Question({"type": "integer"}, ("2",), (), walks=2)


DIGEST = """
import hashlib, json
from tests.unit.fuzz.test_search import digest
print(digest())
"""


def digest() -> str:
    questions = [[q.schema, q.valid, q.invalid, q.seed] for q in questions_of_search("full", 40)]
    return hashlib.sha256(json.dumps(questions).encode()).hexdigest()


def test_the_same_seed_asks_the_same_questions_in_any_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other processes have another hash seed, locale and home."""
    digests = {digest()}
    for number, language in (("1", "C"), ("77", "tr_TR.UTF-8")):
        environment = {
            "PYTHONHASHSEED": number,
            "LC_ALL": language,
            "HOME": "/nonexistent",
            "PATH": "/usr/bin:/bin",
        }
        done = subprocess.run(
            [sys.executable, "-c", DIGEST],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1
