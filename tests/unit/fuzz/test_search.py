"""The search with backends of our own making: planted faults are found, told apart and shrunk; the same seed asks the same."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from typing import Any

import pytest

from pytest_vllm_regress.fuzz.finding import Finding, questions_of
from pytest_vllm_regress.fuzz.oracle import Outcome, Problem, Question
from pytest_vllm_regress.fuzz.search import Search
from pytest_vllm_regress.schemas import PROFILES, Budget, features, validator
from pytest_vllm_regress.schemas.features import walk


def planted(question: Question) -> tuple[Problem, ...]:
    """Cannot compile a pattern, refuses negative numbers, and forgets maxItems."""
    nodes = [node for node in walk(question.schema) if isinstance(node, dict)]
    found = []
    if any("pattern" in node for node in nodes):
        found.append(Problem(Outcome.COMPILE_ERROR, "ValueError pattern", "no patterns"))
    found += [
        Problem(Outcome.REFUSED_VALID, "both ways", text, text)
        for text in question.valid
        if "-" in text and text.strip("-").isdigit()
    ]
    if any("maxItems" in node for node in nodes):
        found.append(Problem(Outcome.ACCEPTED_INVALID, "maxItems", "too many", "[1, 1, 1]"))
    return tuple(found)


def search(ask: Any = planted, profile: str = "full", **options: Any) -> Search:
    return Search(ask, PROFILES[profile], Budget(), **{"examples": 300, "seed_value": 1, **options})


def asked_in(profile: str, examples: int) -> list[Question]:
    """The questions of a search that finds nothing."""
    asked: list[Question] = []

    def note(question: Question) -> tuple[Problem, ...]:
        asked.append(question)
        return ()

    search(note, profile, examples=examples).run()
    return asked


def test_planted_faults_are_found_and_shrunk_to_their_minimum() -> None:
    survey = search().run()
    minima = {finding.problem.key: finding.question.schema for finding in reversed(survey.findings)}
    assert minima["ValueError pattern"] == {"type": "string", "pattern": "^[a-z]*$"}
    assert minima["maxItems"] == {"type": "array", "maxItems": 0}
    assert minima["both ways"] == {"type": "integer"}
    assert survey.counts[Outcome.PASSING] > 100
    assert survey.checks > survey.schemas > 300


def test_a_known_finding_is_not_found_again() -> None:
    first = search().run()
    again = search(known=tuple(first.findings)).run()
    assert not again.findings


def test_it_ends_at_its_time() -> None:
    def slow(question: Question) -> tuple[Problem, ...]:
        time.sleep(0.02)
        return planted(question)

    began = time.monotonic()
    survey = search(slow, until=began + 1.0).run()
    assert survey.schemas < 100
    assert time.monotonic() - began < 15
    assert survey.findings  # what was found until then is kept


def test_answers_that_do_not_repeat_are_kept_and_said() -> None:
    asked: list[Question] = []

    def moody(question: Question) -> tuple[Problem, ...]:
        asked.append(question)
        return (Problem(Outcome.CRASH, "moody", "once"),) if len(asked) == 5 else ()

    survey = search(moody).run()
    assert [finding.problem.key for finding in survey.findings] == ["moody"]


@pytest.mark.parametrize("profile", ["lm-format-enforcer", "llguidance", "outlines", "xgrammar"])
def test_questions_are_about_the_profile_and_their_texts_are_what_they_say(profile: str) -> None:
    asked = asked_in(profile, 60)
    assert len(asked) > 30
    for question in asked:
        judge = validator(question.schema)
        assert features(question.schema) <= {feature.value for feature in PROFILES[profile].features}
        assert question.valid
        assert all(judge.is_valid(json.loads(text)) for text in question.valid)
        assert not any(judge.is_valid(json.loads(text)) for text in question.invalid)


def test_a_closed_profile_draws_declared_properties_only_and_in_order() -> None:
    asked = asked_in("outlines", 200)
    for question in asked:
        schema = question.schema
        if schema.get("type") == "object" and "properties" in schema:
            order = list(schema["properties"])
            for text in question.valid:
                names = list(json.loads(text))
                assert names == [name for name in order if name in names]


def test_a_question_keeps_only_the_text_that_matters() -> None:
    asked = Question({"type": "integer"}, ("1", "2"), ("x", "y"), walks=2)
    walked = Finding(asked, Problem(Outcome.ACCEPTED_INVALID, "type", "", "1.5"))
    assert questions_of(walked) == Question({"type": "integer"}, ("1",), ("1.5",), walks=2)
    accepted = Finding(asked, Problem(Outcome.ACCEPTED_INVALID, "type", "", "y"))
    assert questions_of(accepted) == Question({"type": "integer"}, ("1",), ("y",), walks=0)
    refused = Finding(asked, Problem(Outcome.REFUSED_VALID, "both ways", "", "2"))
    assert questions_of(refused) == Question({"type": "integer"}, ("2",), (), walks=2)


DIGEST = """
import hashlib, json
from tests.unit.fuzz.test_search import digest
print(digest())
"""


def digest() -> str:
    asked = [[each.schema, each.valid, each.invalid, each.seed] for each in asked_in("full", 40)]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def test_the_same_seed_asks_the_same_whatever_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process, another hash seed, another locale, another home."""
    found = {digest()}
    for number, language in (("1", "C"), ("77", "tr_TR.UTF-8")):
        environment = {"PYTHONHASHSEED": number, "LC_ALL": language, "HOME": "/nonexistent", "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            [sys.executable, "-c", DIGEST], env=environment, capture_output=True, text=True, check=True
        )
        found.add(done.stdout.strip())
    assert len(found) == 1
