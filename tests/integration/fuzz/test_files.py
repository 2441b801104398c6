"""Finding files, replays, the corpus, and the commands fuzz and replay with a stub backend."""

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
from pytest_vllm_regress.fuzz.oracle import Outcome, Problem, Question, find_violation
from pytest_vllm_regress.schemas import PROFILES, validator
from tests.conftest import MakeTarget
from tests.helpers import ROOT

STUB = ROOT / "tests" / "helpers" / "grammar_stub.py"
PROBLEM = Problem(Outcome.REFUSED_VALID, "both ways", "refuses it", '"c"')
QUESTION = Question({"type": "string"}, ('"c"',))
ARTEFACT = Artefact(
    "lm-format-enforcer",
    "lm-format-enforcer-0.10.11",
    {"lm-format-enforcer": "0.10.11"},
    QUESTION,
    PROBLEM,
    seed=3,
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
    """A backend with fixed problems."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems

    def ask(self, question: Question) -> tuple[Problem, ...]:
        return self.problems


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
def test_a_damaged_finding_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    path = tmp_path / "finding.json"
    path.write_text(json.dumps({**ARTEFACT.to_json(), **change}))
    with pytest.raises(UsageError, match=words) as error:
        load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "content", [b"", b"[", b"[1]", b"\xff\xfe", b"[" * 100_000, b" " * 2_000_000]
)
def test_a_file_that_is_not_a_finding_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "finding.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="finding"):
        load(path)


@pytest.mark.parametrize(
    ("problems", "answer"),
    [
        ((PROBLEM,), Answer.STILL_FAILS),
        ((Problem(Outcome.REFUSED_VALID, "by tokens", "", '"c"'),), Answer.STILL_FAILS),
        ((), Answer.FIXED),
        ((Problem(Outcome.ACCEPTED_INVALID, "type", "", "1"),), Answer.FIXED),
        ((Problem(Outcome.COMPILE_ERROR, "ValueError", "no"),), Answer.CANNOT_RUN),
        ((Problem(Outcome.TIME_OUT, "time", "late"),), Answer.CANNOT_RUN),
    ],
)
def test_a_replay_is_fixed_only_if_the_backend_answers(
    problems: tuple[Problem, ...], answer: Answer
) -> None:
    assert replay(ARTEFACT, Backend(*problems))[0] is answer  # type: ignore[arg-type]


def test_a_schema_that_no_longer_compiles_counts_as_fixed_if_invalid_text_was_accepted() -> None:
    accepted = Artefact(
        "xgrammar", "x", {}, Question({}), Problem(Outcome.ACCEPTED_INVALID, "type", "", "1")
    )
    assert (
        replay(accepted, Backend(Problem(Outcome.COMPILE_ERROR, "ValueError", "no")))[0]  # type: ignore[arg-type]
        is Answer.FIXED
    )


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
def test_a_violation_names_the_keyword(
    schema: dict[str, Any], text: str, keyword: str | None
) -> None:
    violation = find_violation(validator(schema), text)
    assert (violation and violation[0]) == keyword


def test_jsonschema_agrees_with_the_built_in_corpus() -> None:
    groups = list(corpus.read(corpus.BUILT_IN))
    assert len(groups) > 40
    written = [
        group
        for path in sorted(corpus.BUILT_IN.glob("*.json"))
        for group in json.loads(path.read_text())
    ]
    assert len(groups) == len(written)
    assert [len(group.question.valid) + len(group.question.invalid) for group in groups] == [
        len(group["tests"]) for group in written
    ]
    assert sum(group.claimed_by(PROFILES["llguidance"]) for group in groups) > 35


def test_a_corpus_skips_unusable_schemas_and_refuses_other_files(tmp_path: Path) -> None:
    tests = [
        {"description": "one", "data": 1, "valid": True},
        {"description": "wrong in our draft", "data": "x", "valid": True},
    ]
    schemas: list[Any] = [{"type": "integer"}, True, {"$ref": "https://example.org/x"}, {"type": 7}]
    (tmp_path / "some.json").write_text(
        json.dumps(
            [
                {"description": str(n), "schema": schema, "tests": tests}
                for n, schema in enumerate(schemas)
            ]
        )
    )
    (group,) = corpus.read(tmp_path)
    assert group == corpus.Group("some: 0", Question({"type": "integer"}, ("1",), ()))
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(UsageError, match=r"other\.json: not a file of the JSON Schema Test Suite"):
        list(corpus.read(tmp_path))
    with pytest.raises(UsageError, match="no files"):
        list(corpus.read(tmp_path / "nowhere"))


@pytest.mark.slow
def test_fuzz_writes_findings_that_replay_and_become_cases(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "fuzz",
                "schemas",
                str(target),
                "--seed",
                "0",
                "--examples",
                "5",
                "--minutes",
                "0.2",
                "--profile",
                "basic",
            ]
        )
        == 1
    )
    printed = capsys.readouterr().out
    assert "lm-format-enforcer 0.10.11" in printed
    assert "refused valid" in printed
    findings = sorted((tmp_path / "findings").glob("*.json"))
    assert findings
    assert f"vllm-regress replay findings/{findings[0].name}" in printed
    assert main(["replay", "findings"]) == 2
    assert "with --env" in capsys.readouterr().err
    assert main(["replay", "findings", "--env", str(target), "--json"]) == 1
    assert {entry["answer"] for entry in json.loads(capsys.readouterr().out)} == {"STILL FAILS"}
    assert (
        main(["--cases", "cases", "new", "--finding", str(findings[0]), "--title", "as found"]) == 0
    )
    (case,) = (tmp_path / "cases").iterdir()
    assert load(case / "finding.json").problem == load(findings[0]).problem
    assert "vllm_grammar" in next(case.glob("test_*.py")).read_text()
    assert main(["--cases", "cases", "run", "--env", str(target)]) == 0
    assert "REPRODUCED" in capsys.readouterr().out


def test_a_finding_without_its_backend_cannot_run(
    make_target: MakeTarget, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ARTEFACT.save(tmp_path)
    assert main(["replay", str(path), "--env", str(make_target(vllm="0.8.4"))]) == 3
    assert "CANNOT RUN" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["fuzz", "schemas", "lm-format-enforcer-0.10.11", "--backend", "guidance"],
            "allowed are lm-format-enforcer, xgrammar",
        ),
        (
            ["fuzz", "schemas", "lm-format-enforcer-0.10.11", "--profile", "nothing"],
            "no schema profile named 'nothing'",
        ),
        (["fuzz", "schemas", "no-such-env"], "unknown environment"),
        (["fuzz", "schemas"], "name an environment"),
        (
            ["fuzz", "schemas", "lm-format-enforcer-0.10.11", "--engine", "async"],
            "allowed are offline and serve",
        ),
        (["replay", "nowhere.json"], "cannot be read"),
    ],
)
def test_errors_name_the_bad_argument(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_statistics_need_no_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "schemas", "--statistics", "--examples", "30"]) == 0
    assert "30 schemas" in capsys.readouterr().out


def test_a_replay_gets_more_time_unless_the_finding_is_a_time_out() -> None:
    late = dataclasses.replace(
        ARTEFACT, problem=Problem(Outcome.TIME_OUT, "", "no answer within 10 s")
    )
    assert late.replay_allowance == late.allowance
    accepted = dataclasses.replace(
        ARTEFACT, problem=Problem(Outcome.ACCEPTED_INVALID, "type", "", "1")
    )
    assert accepted.replay_allowance.seconds > accepted.allowance.seconds
    assert accepted.replay_allowance.memory == accepted.allowance.memory


def test_the_form_without_schemas_works_and_warns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "--statistics", "--examples", "30"]) == 0
    printed = capsys.readouterr()
    assert "30 schemas" in printed.out
    assert (
        "is deprecated and will be removed in pytest-vllm-regress 0.2.0: use vllm-regress fuzz schemas"
        in printed.err
    )


def test_parsers_need_vllm(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "parsers", str(target)]) == 2
    assert "has no vLLM" in capsys.readouterr().err
