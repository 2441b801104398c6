"""Finding files, replays, the corpus, and the commands fuzz and replay with a stub backend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.cases.proofs.impostors import MIN_REJECTED, read_impostor_runs
from pytest_vllm_regress.cli import main
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.fuzz.finding import Problem, ReplayAnswer
from pytest_vllm_regress.fuzz.hunter import load
from pytest_vllm_regress.fuzz.schemas import corpus
from pytest_vllm_regress.fuzz.schemas.schema_hunter import SchemaFinding, SchemaHunter
from pytest_vllm_regress.fuzz.schemas.schema_judge import find_violation
from pytest_vllm_regress.fuzz.schemas.schema_oracle import (
    Outcome,
    SchemaQuestion,
)
from pytest_vllm_regress.schemas import PROFILES, features, validator
from pytest_vllm_regress.util import codec
from tests.conftest import MakeTarget
from tests.helpers import ROOT

STUB = ROOT / "tests" / "helpers" / "grammar_stub.py"
PROBLEM = Problem(Outcome.REFUSED_VALID, "refuses it", "both ways", '"c"')
FINDING = SchemaFinding(
    backend="lm-format-enforcer",
    environment="lm-format-enforcer-0.10.11",
    versions={"lm-format-enforcer": "0.10.11"},
    question=SchemaQuestion({"type": "string"}, ('"c"',)),
    problem=PROBLEM,
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
    """Stands in for ``Backends``: one with fixed problems."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems

    def asker(self, part: object) -> Backend:
        return self

    def ask(self, question: SchemaQuestion) -> tuple[Problem, ...]:
        return self.problems


def replay(finding: SchemaFinding, *problems: Problem) -> ReplayAnswer:
    return SchemaHunter(Backend(*problems), "env").replay(finding)[0]  # type: ignore[arg-type]


def test_a_finding_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert load(FINDING.save(tmp_path / "new" / "folder")) == FINDING


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"backend": "other"}, "backend"),
        ({"format": 9}, "format"),
        ({"question": {"schema": 1}}, "question"),
        ({"problem": {**codec.encode(FINDING)["problem"], "kind": "passing"}}, "kind"),
        ({"surplus": 1}, "surplus"),
    ],
)
def test_a_damaged_finding_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    path = tmp_path / "finding.json"
    path.write_text(json.dumps({**codec.encode(FINDING), **change}))
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
        ((PROBLEM,), ReplayAnswer.STILL_FAILS),
        ((Problem(Outcome.REFUSED_VALID, "", "by tokens", '"c"'),), ReplayAnswer.STILL_FAILS),
        ((), ReplayAnswer.FIXED),
        ((Problem(Outcome.ACCEPTED_INVALID, "", "type", "1"),), ReplayAnswer.FIXED),
        ((Problem(Outcome.COMPILE_ERROR, "no", "ValueError"),), ReplayAnswer.CANNOT_RUN),
        ((Problem(Outcome.TIME_OUT, "late", "time"),), ReplayAnswer.CANNOT_RUN),
    ],
)
def test_a_replay_is_fixed_only_if_the_backend_answers(
    problems: tuple[Problem, ...], answer: ReplayAnswer
) -> None:
    assert replay(FINDING, *problems) is answer


def test_a_schema_that_no_longer_compiles_counts_as_fixed_if_invalid_text_was_accepted() -> None:
    accepted = codec.replace(FINDING, problem=Problem(Outcome.ACCEPTED_INVALID, "", "type", "1"))
    rejected = Problem(Outcome.COMPILE_ERROR, "no", "ValueError")
    assert replay(accepted, rejected) is ReplayAnswer.FIXED


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
    question = SchemaQuestion({"type": "integer"}, ("1",), ())
    assert group == corpus.CorpusGroup("some: 0", question, features(question.schema))
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
                "--env",
                str(target),
                "--examples",
                "5",
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
    assert f"vllm-regress fuzz replay findings/{findings[0].name}" in printed
    assert main(["fuzz", "replay", "findings"]) == 2
    assert "with --env" in capsys.readouterr().err
    assert main(["fuzz", "replay", "findings", "--env", str(target), "--format", "json"]) == 1
    assert {entry["answer"] for entry in json.loads(capsys.readouterr().out)} == {"STILL FAILS"}
    assert (
        main(["--cases", "cases", "new", "--finding", str(findings[0]), "--title", "as found"]) == 0
    )
    (case,) = (path for path in (tmp_path / "cases").iterdir() if path.is_dir())
    assert load(case / "finding.json").problem == load(findings[0]).problem
    assert "vllm_grammar" in next(case.glob("test_*.py")).read_text()
    assert main(["--cases", "cases", "run", "--env", str(target)]) == 0
    assert "REPRODUCED" in capsys.readouterr().out
    # As `validate` proves it.
    main(
        ["--cases", "cases", "run", "--env", str(target), "--", f"--vllm-impostors={tmp_path}/met"]
    )
    (met,) = (tmp_path / "met").iterdir()
    runs = read_impostor_runs(met)
    assert len(runs) == MIN_REJECTED
    assert not [run.flaw for run in runs if run.flaw]


def test_a_finding_without_its_backend_cannot_run(
    make_target: MakeTarget, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = FINDING.save(tmp_path)
    assert main(["fuzz", "replay", str(path), "--env", str(make_target(vllm="0.8.4"))]) == 3
    assert "CANNOT RUN" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["fuzz", "schemas", "--env", "lm-format-enforcer-0.10.11", "--backend", "guidance"],
            "allowed are lm-format-enforcer, xgrammar",
        ),
        (
            ["fuzz", "schemas", "--env", "lm-format-enforcer-0.10.11", "--profile", "nothing"],
            "no schema profile named 'nothing'",
        ),
        (["fuzz", "schemas", "--env", "no-such-env"], "unknown environment"),
        (["fuzz", "schemas"], "name an environment with --env"),
        (
            ["fuzz", "schemas", "--env", "lm-format-enforcer-0.10.11", "--engine", "async"],
            "allowed are offline and serve",
        ),
        (["fuzz", "replay", "nowhere.json"], "cannot be read"),
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
    late = codec.replace(FINDING, problem=Problem(Outcome.TIME_OUT, "no answer within 10 s"))
    assert late.replay_allowance == late.allowance
    accepted = codec.replace(FINDING, problem=Problem(Outcome.ACCEPTED_INVALID, "", "type", "1"))
    assert accepted.replay_allowance.seconds > accepted.allowance.seconds
    assert accepted.replay_allowance.memory == accepted.allowance.memory


def test_parsers_need_vllm(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "parsers", "--env", str(target)]) == 2
    assert "has no vLLM" in capsys.readouterr().err
