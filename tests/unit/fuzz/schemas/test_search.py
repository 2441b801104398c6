"""The search finds, distinguishes and shrinks planted faults.

The same seed asks the same questions.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_vllm_regress.fuzz import campaign as campaigns
from pytest_vllm_regress.fuzz.campaign import Campaign
from pytest_vllm_regress.fuzz.drawing import drawn
from pytest_vllm_regress.fuzz.finding import Problem
from pytest_vllm_regress.fuzz.hunter import CampaignPlan
from pytest_vllm_regress.fuzz.schemas.backends import Allowance
from pytest_vllm_regress.fuzz.schemas.schema_cuts import minimal_question
from pytest_vllm_regress.fuzz.schemas.schema_hunter import (
    BackendPart,
    SchemaFinding,
    SchemaHunter,
    schema_questions,
)
from pytest_vllm_regress.fuzz.schemas.schema_oracle import Outcome, SchemaQuestion
from pytest_vllm_regress.schemas import PROFILES, Budget, features, validator
from pytest_vllm_regress.schemas.features import walk
from pytest_vllm_regress.util import codec

Ask = Callable[[SchemaQuestion], tuple[Problem, ...]]
SchemaCampaign = Campaign[Any, Any, SchemaFinding]


def planted(question: SchemaQuestion) -> tuple[Problem, ...]:
    """Cannot compile a pattern, refuses negative numbers, and forgets maxItems."""
    nodes = [node for node in walk(question.schema) if isinstance(node, dict)]
    problems = []
    if any("pattern" in node for node in nodes):
        problems.append(Problem(Outcome.COMPILE_ERROR, "no patterns", "ValueError pattern"))
    problems += [
        Problem(Outcome.REFUSED_VALID, text, "both ways", text)
        for text in question.valid
        if "-" in text and text.strip("-").isdigit()
    ]
    if any("maxItems" in node for node in nodes):
        problems.append(Problem(Outcome.ACCEPTED_INVALID, "too many", "maxItems", "[1, 1, 1]"))
    return tuple(problems)


class Backend:
    """Stands in for ``Backends``: one backend with planted faults."""

    versions: Mapping[str, str] = {"xgrammar": "0.1"}
    version, package = "0.1", "xgrammar"

    def __init__(self, ask: Ask) -> None:
        self.ask = ask

    def checker(self, part: BackendPart) -> Backend:
        return self

    asker = checker


def search(folder: Path, ask: Ask = planted, **plan: Any) -> SchemaCampaign:
    """Run a campaign with the profile ``full``."""
    tested = [BackendPart("env", "xgrammar", Allowance())]
    hunter = SchemaHunter(Backend(ask), "env", tested, profile=PROFILES["full"])  # type: ignore[arg-type]
    wanted = CampaignPlan(**{"seed": 1, "examples": 120, **plan})
    campaign = Campaign(hunter, wanted, folder, lambda line: None)
    campaign.run()
    return campaign


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> SchemaCampaign:
    """A campaign against the planted faults."""
    return search(tmp_path_factory.mktemp("planted"))


@pytest.mark.slow
def test_planted_faults_are_found_and_shrunk_to_their_minimum(result: SchemaCampaign) -> None:
    minima = {finding.problem.key: finding.question.schema for finding in reversed(result.findings)}
    assert minima["ValueError pattern"].keys() == {"type", "pattern"}
    assert minima["maxItems"] == {"type": "array", "maxItems": 0}
    assert minima["both ways"] == {"type": "integer"}
    assert sum(step.counts.get(Outcome.PASSING, 0) for step in result.steps) > 30
    assert sum(step.asked for step in result.steps) > 60


@pytest.mark.slow
def test_known_findings_are_not_reported_again(result: SchemaCampaign, tmp_path: Path) -> None:
    again = search(tmp_path / "more", rounds=2)
    assert again.findings[: len(result.findings)] == result.findings
    for earlier, later in itertools.combinations(again.findings, 2):
        assert not earlier.explains(later.question, later.problem)


def test_a_search_ends_behind_the_step_that_spends_its_budget(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(campaigns, "time", clock)

    def slow(question: SchemaQuestion) -> tuple[Problem, ...]:
        now[0] += 0.5
        return ()

    campaign = search(tmp_path, slow, minutes=10 / 60)
    assert [step.asked for step in campaign.steps] == [10, 10]
    assert now[0] == 110.0


def test_problems_that_do_not_repeat_are_kept(tmp_path: Path) -> None:
    questions: list[SchemaQuestion] = []

    def flaky(question: SchemaQuestion) -> tuple[Problem, ...]:
        questions.append(question)
        return (Problem(Outcome.CRASH, "once", "flaky"),) if len(questions) == 5 else ()

    campaign = search(tmp_path, flaky, examples=40)
    assert [finding.problem.key for finding in campaign.findings] == ["flaky"]


def questions_of_search(profile: str, examples: int) -> list[SchemaQuestion]:
    return drawn(schema_questions(PROFILES[profile], Budget(nodes=12)), examples, 1)


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
    integer = {"type": "integer"}
    question = SchemaQuestion(integer, ("1", "2"), ("x", "y"), walks=2)

    def minimal(kind: str, text: str) -> SchemaQuestion:
        return minimal_question(question, Problem(kind, text=text))

    walked = minimal(Outcome.ACCEPTED_INVALID, "1.5")
    assert walked == SchemaQuestion(integer, ("1",), ("1.5",), walks=2)
    accepted = minimal(Outcome.ACCEPTED_INVALID, "y")
    assert accepted == SchemaQuestion(integer, ("1",), ("y",), walks=0)
    refused = minimal(Outcome.REFUSED_VALID, "2")
    assert refused == SchemaQuestion(integer, ("2",), (), walks=2)


DIGEST = """
import hashlib, json
from tests.unit.fuzz.schemas.test_search import digest
print(digest())
"""


def digest() -> str:
    questions = codec.encode(questions_of_search("full", 40))
    return hashlib.sha256(json.dumps(questions).encode()).hexdigest()


def test_the_same_seed_asks_the_same_questions_in_any_process() -> None:
    """The other process has another hash seed, locale and home."""
    environment = {
        "PYTHONHASHSEED": "77",
        "LC_ALL": "tr_TR.UTF-8",
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
    assert done.stdout.strip() == digest()
