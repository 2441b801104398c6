"""Findings as files, replays, the corpus, and the commands fuzz and replay with a stand-in backend."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.cli import main
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.fuzz import corpus
from pytest_vllm_regress.fuzz.artefact import Answer, Artefact, load, replay
from pytest_vllm_regress.fuzz.oracle import Outcome, Problem, Question, violated
from pytest_vllm_regress.schemas import PROFILES, validator
from tests.conftest import MakeTarget
from tests.helpers import ROOT

STUB = ROOT / "tests" / "helpers" / "grammar_stub.py"
REFUSED = Problem(Outcome.REFUSED_VALID, "both ways", "refuses it", '"c"')
ASKED = Question({"type": "string"}, ('"c"',))
ARTEFACT = Artefact(
    "lm-format-enforcer", "lm-format-enforcer-0.10.11", {"lm-format-enforcer": "0.10.11"}, ASKED, REFUSED, seed=3
)


@pytest.fixture
def target(make_target: MakeTarget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    python = make_target(**{"lm-format-enforcer": "0.10.11"})
    site = next((python.parent.parent / "lib").glob("python3.*/site-packages"))
    (site / "lmformatenforcer.py").write_text(STUB.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    return python


class Backend:
    """Answers as told."""

    def __init__(self, *found: Problem) -> None:
        self.found = found

    def ask(self, question: Question) -> tuple[Problem, ...]:
        return self.found


def test_a_finding_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert load(ARTEFACT.save(tmp_path / "new" / "folder")) == ARTEFACT


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"backend": "other"}, "backend"),
        ({"format": 9}, "format"),
        ({"question": {"schema": 1}}, "question"),
        ({"problem": {**ARTEFACT.to_json()["problem"], "outcome": "passing"}}, "outcome"),
        ({"surplus": 1}, "surplus"),
    ],
)
def test_a_damaged_finding_is_refused_by_name(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = tmp_path / "finding.json"
    path.write_text(json.dumps({**ARTEFACT.to_json(), **change}))
    with pytest.raises(UsageError, match=words) as error:
        load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("content", [b"", b"[", b"[1]", b"\xff\xfe", b"[" * 100_000, b" " * 2_000_000])
def test_what_is_no_finding_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "finding.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="finding"):
        load(path)


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        ((REFUSED,), Answer.STILL_FAILS),
        ((Problem(Outcome.REFUSED_VALID, "by tokens", "", '"c"'),), Answer.STILL_FAILS),
        ((), Answer.FIXED),
        ((Problem(Outcome.ACCEPTED_INVALID, "type", "", "1"),), Answer.FIXED),
        ((Problem(Outcome.COMPILE_ERROR, "ValueError", "no"),), Answer.CANNOT_RUN),
        ((Problem(Outcome.TIME_OUT, "time", "late"),), Answer.CANNOT_RUN),
    ],
)
def test_a_replay_is_fixed_only_by_an_answer(found: tuple[Problem, ...], answer: Answer) -> None:
    assert replay(ARTEFACT, Backend(*found))[0] is answer  # type: ignore[arg-type]


def test_a_schema_that_is_refused_now_accepts_nothing_wrong() -> None:
    accepted = Artefact("xgrammar", "x", {}, Question({}), Problem(Outcome.ACCEPTED_INVALID, "type", "", "1"))
    assert replay(accepted, Backend(Problem(Outcome.COMPILE_ERROR, "ValueError", "no")))[0] is Answer.FIXED  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "text", "keyword"),
    [
        ({"type": "integer"}, "1e400", None),
        ({"type": "integer"}, "1.5", "type"),
        ({"type": "number"}, "NaN", "not JSON"),
        ({"type": "number"}, "01", "not JSON: Extra data"),
        ({"type": "string"}, '"a', "not JSON: Unterminated string starting"),
        ({"type": "array", "maxItems": 0}, "[1]", "maxItems"),
    ],
)
def test_the_keyword_that_a_text_violates(schema: dict[str, Any], text: str, keyword: str | None) -> None:
    found = violated(validator(schema), text)
    assert (found and found[0]) == keyword


def test_the_standing_corpus_is_right_by_jsonschema() -> None:
    groups = list(corpus.read(corpus.BUILT_IN))
    assert len(groups) > 40
    written = [group for path in sorted(corpus.BUILT_IN.glob("*.json")) for group in json.loads(path.read_text())]
    assert len(groups) == len(written)
    assert [len(group.question.valid) + len(group.question.invalid) for group in groups] == [
        len(each["tests"]) for each in written
    ]
    assert sum(group.claimed_by(PROFILES["llguidance"]) for group in groups) > 35


def test_a_corpus_leaves_out_what_cannot_be_asked_and_refuses_what_is_none(tmp_path: Path) -> None:
    tests = [
        {"description": "one", "data": 1, "valid": True},
        {"description": "wrong in our draft", "data": "x", "valid": True},
    ]
    schemas: list[Any] = [{"type": "integer"}, True, {"$ref": "https://example.org/x"}, {"type": 7}]
    (tmp_path / "some.json").write_text(
        json.dumps([{"description": str(n), "schema": schema, "tests": tests} for n, schema in enumerate(schemas)])
    )
    (group,) = corpus.read(tmp_path)
    assert group == corpus.Group("some: 0", Question({"type": "integer"}, ("1",), ()))
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(UsageError, match=r"other\.json: not a file of the JSON Schema Test Suite"):
        list(corpus.read(tmp_path))
    with pytest.raises(UsageError, match="no files"):
        list(corpus.read(tmp_path / "nowhere"))


def test_fuzz_finds_writes_and_replays(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", str(target), "--seed", "0", "--examples", "5", "--minutes", "0.2", "--profile", "basic"]) == 1
    printed = capsys.readouterr().out
    assert "lm-format-enforcer 0.10.11" in printed
    assert "refused valid" in printed
    found = sorted((tmp_path / "findings").glob("*.json"))
    assert found
    assert f"vllm-regress replay findings/{found[0].name}" in printed
    assert main(["replay", "findings"]) == 2
    assert "by --env" in capsys.readouterr().err
    assert main(["replay", "findings", "--env", str(target), "--json"]) == 1
    assert {each["answer"] for each in json.loads(capsys.readouterr().out)} == {"STILL FAILS"}
    assert main(["--cases", "cases", "new", "--finding", str(found[0]), "--title", "as found"]) == 0
    (case,) = (tmp_path / "cases").iterdir()
    assert load(case / "finding.json").problem == load(found[0]).problem
    assert "vllm_grammar" in next(case.glob("test_*.py")).read_text()
    assert main(["--cases", "cases", "run", "--env", str(target)]) == 0
    assert "REPRODUCED" in capsys.readouterr().out


def test_a_finding_that_cannot_be_asked_says_why(
    make_target: MakeTarget, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ARTEFACT.save(tmp_path)
    assert main(["replay", str(path), "--env", str(make_target(vllm="0.8.4"))]) == 3
    assert "CANNOT RUN" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fuzz", "lm-format-enforcer-0.10.11", "--backend", "guidance"], "allowed are lm-format-enforcer, xgrammar"),
        (["fuzz", "lm-format-enforcer-0.10.11", "--profile", "nothing"], "no schema profile named 'nothing'"),
        (["fuzz", "no-such-env"], "unknown environment"),
        (["fuzz"], "name an environment"),
        (["fuzz", "lm-format-enforcer-0.10.11", "--engine", "async"], "allowed are offline and serve"),
        (["replay", "nowhere.json"], "cannot be read"),
    ],
)
def test_bad_input_is_named(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_statistics_ask_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "--statistics", "--examples", "30"]) == 0
    assert "30 schemas" in capsys.readouterr().out


def test_a_slower_machine_gets_more_time_unless_the_time_is_the_finding() -> None:
    late = dataclasses.replace(ARTEFACT, problem=Problem(Outcome.TIME_OUT, "", "no answer within 10 s"))
    assert late.patience == late.allowance
    accepted = dataclasses.replace(ARTEFACT, problem=Problem(Outcome.ACCEPTED_INVALID, "type", "", "1"))
    assert accepted.patience.seconds > accepted.allowance.seconds
    assert accepted.patience.memory == accepted.allowance.memory
