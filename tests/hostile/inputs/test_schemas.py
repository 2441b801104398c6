"""Schemas and patterns of findings and of a corpus: judged in a process with limits, and never
fetched from elsewhere."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.fuzz.campaign import Campaign
from pytest_vllm_regress.fuzz.finding import Problem, ReplayAnswer
from pytest_vllm_regress.fuzz.hunter import CampaignPlan, load
from pytest_vllm_regress.fuzz.schemas import corpus, schema_judge
from pytest_vllm_regress.fuzz.schemas.backends import Allowance
from pytest_vllm_regress.fuzz.schemas.schema_hunter import (
    NOT_JUDGED,
    BackendPart,
    SchemaFinding,
    SchemaHunter,
)
from pytest_vllm_regress.fuzz.schemas.schema_judge import (
    NotJudged,
    SchemaJudge,
    find_violation,
    judge,
)
from pytest_vllm_regress.fuzz.schemas.schema_oracle import (
    Outcome,
    SchemaQuestion,
    problems,
)
from pytest_vllm_regress.schemas import PROFILES, validator

Ask = Callable[[SchemaQuestion], tuple[Problem, ...]]


@pytest.fixture
def strict_judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Allow one second of processor time for a request."""
    judge().close()
    monkeypatch.setattr(judge(), "seconds", 1)
    yield
    judge().close()


def doubled(levels: int, keyword: str = "allOf") -> dict[str, Any]:
    """Return a schema in which each definition refers to the next one twice."""
    links = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{levels}": {"type": "string"}}}


HOSTILE: dict[str, tuple[dict[str, Any], Any]] = {
    "doubled references": (doubled(40), "x"),
    "doubled alternatives": (doubled(40, "anyOf"), 1),
    "pattern": ({"type": "string", "pattern": "^(a+)+$"}, "a" * 60 + "!"),
    "pattern of names": (
        {"patternProperties": {"^(a|aa)+$": {"type": "null"}}},
        {"a" * 60 + "!": 1},
    ),
}


def reply(text: str) -> dict[str, Any]:
    """Return the reply of a backend that accepts the invalid text and wrote it in a walk."""
    walk = {"text": text, "end": "finished"}
    return {"valid": [], "invalid": [[None, None]], "walks": [walk], "carried": None, "error": None}


class Backend:
    """A backend; by default one that accepts everything: the oracle looks at its reply."""

    def __init__(self, ask: Ask = lambda one: problems(one, reply(one.invalid[0]))) -> None:
        self.ask = ask

    def asker(self, part: BackendPart) -> Backend:
        return self

    version = "0.1"
    checker = asker


@pytest.mark.usefixtures("strict_judge")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_finding_whose_schema_cannot_be_judged_cannot_run(tmp_path: Path, name: str) -> None:
    schema, value = HOSTILE[name]
    finding = SchemaFinding(
        backend="xgrammar",
        environment="x",
        versions={},
        question=SchemaQuestion(schema, (), (json.dumps(value),)),
        problem=Problem(Outcome.ACCEPTED_INVALID, "", "type", "1"),
    )
    hunter = SchemaHunter(Backend(), "x")  # type: ignore[arg-type]
    answer, words = hunter.replay(load(finding.save(tmp_path)))
    assert (answer, "processor time" in words) == (ReplayAnswer.CANNOT_RUN, True), words


@pytest.mark.usefixtures("strict_judge")
def test_groups_of_a_corpus_that_cannot_be_judged_are_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    groups = [
        {"description": name, "schema": schema, "tests": [{"data": value, "valid": False}]}
        for name, (schema, value) in HOSTILE.items()
        if name in ("doubled references", "pattern")
    ]
    honest = {
        "description": "honest",
        "schema": {"type": "integer"},
        "tests": [{"data": 1, "valid": True}],
    }
    (tmp_path / "some.json").write_text(json.dumps([*groups, honest]))
    with caplog.at_level(logging.WARNING, "vllm_regress.fuzz"):
        (group,) = corpus.read(tmp_path)
    assert (group.name, group.claimed_by(PROFILES["basic"])) == ("some: honest", True)
    assert "some: pattern: left out" in caplog.text


def test_a_corpus_of_slow_schemas_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "BASE_SECONDS", 0.1)
    monkeypatch.setattr(corpus, "SECONDS_PER_MIB", 0.1)
    test = {"data": 1, "valid": True}
    (tmp_path / "some.json").write_text(
        json.dumps([{"description": "one", "schema": {"type": "integer"}, "tests": [test]}] * 2000)
    )
    with pytest.raises(
        UsageError, match=r"some\.json: judging its schemas takes more than .* -v names them"
    ):
        list(corpus.read(tmp_path))


@pytest.mark.parametrize(
    "schema",
    [
        {"definitions": 5},
        {"$defs": {"a": {"properties": []}}, "$ref": "#/$defs/a"},
        {"$defs": {"a": {"items": [1], "prefixItems": 1}}},
        {"type": "nothing"},
        {"pattern": "("},
        {"$ref": "#"},
        {"$ref": "#/nowhere"},
        {"multipleOf": 0},
        {"enum": 7},
        {"minLength": "x"},
        {"required": {"a": 1}},
    ],
    ids=json.dumps,
)
def test_what_is_no_schema_is_left_out_of_a_corpus_and_not_judged_in_a_finding(
    tmp_path: Path, schema: dict[str, Any]
) -> None:
    group = {"description": "one", "schema": schema, "tests": [{"data": "x", "valid": True}, 7, {}]}
    (tmp_path / "some.json").write_text(json.dumps([group]))
    assert list(corpus.read(tmp_path)) == []
    try:
        problems(SchemaQuestion(schema, (), ('"x"',)), reply('"x"'))
    except NotJudged as error:
        assert "cannot be judged" in str(error)


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_no_reference_to_another_document_is_followed(tmp_path: Path, form: str) -> None:
    secret = tmp_path / "other.json"
    secret.write_text('{"type": "integer"}')
    with pytest.raises(NotJudged, match="Unresolvable"):
        problems(SchemaQuestion({"$ref": form.format(secret)}, (), ('"x"',)), reply('"x"'))


def test_memory_is_limited_and_the_next_request_is_answered() -> None:
    judge = SchemaJudge(seconds=60, memory=500 * 2**20)
    try:
        with pytest.raises(NotJudged, match=r"memory|ended with status"):
            judge.violations({"type": "array"}, ["[" + '"ab",' * 8_000_000 + "1]"])
        assert judge.violations({"type": "integer"}, ["1", '"x"']) == [
            None,
            ("type", "'x' is not of type 'integer'"),
        ]
    finally:
        judge.close()


@pytest.mark.timeout(120)
def test_a_process_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_judge, "_WALL_SECONDS", 0.5)
    monkeypatch.setattr(schema_judge, "_START", "import time; time.sleep(600)")
    judge = SchemaJudge()
    with pytest.raises(NotJudged, match="no answer of jsonschema"):
        judge.violations({"type": "integer"}, ["1"])
    judge.close()


def test_a_campaign_counts_what_is_not_judged_and_goes_on(tmp_path: Path) -> None:
    questions: list[SchemaQuestion] = []

    def ask(question: SchemaQuestion) -> tuple[Problem, ...]:
        questions.append(question)
        if len(questions) % 2:
            raise NotJudged("too slow")
        return ()

    tested = [BackendPart("x", "xgrammar", Allowance())]
    hunter = SchemaHunter(Backend(ask), "x", tested, profile=PROFILES["basic"])  # type: ignore[arg-type]
    campaign = Campaign(hunter, CampaignPlan(seed=1, examples=20), tmp_path, lambda line: None)
    campaign.run()
    assert sum(step.counts[NOT_JUDGED] for step in campaign.steps) > 3
    assert not campaign.findings


@pytest.mark.parametrize(
    "text",
    ["1e99999999999999999999", "-1e-99999999999999999999", "0e99999999999999999999", "1E400"],
)
def test_numbers_beyond_every_range_are_judged(text: str) -> None:
    assert find_violation(validator({"type": "string"}), text) is not None
