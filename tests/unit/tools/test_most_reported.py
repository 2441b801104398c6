"""The record of the failures that people report most."""

from __future__ import annotations

from pathlib import Path

from pytest_vllm_regress.cases.loading import load_all_cases
from tools.most_reported import KINDS, MostReported, ReportedFailure, read_record, shares

ROOT = Path(__file__).parents[3]


def test_every_case_and_diagnosis_exists() -> None:
    failures = read_record().failure
    cases = {case.id for case in load_all_cases(ROOT / "cases")}
    diagnoses = {file.stem for file in (ROOT / "pytest_vllm_regress/data/diagnoses").glob("*.toml")}
    assert {name for failure in failures for name in failure.cases} <= cases
    assert {name for failure in failures for name in failure.diagnoses} <= diagnoses


def test_every_failure_has_reports_and_one_status() -> None:
    failures = read_record().failure
    assert len(failures) >= 60
    for failure in failures:
        assert failure.reports, failure.what
        assert [name for name in KINDS if getattr(failure, name)] == [failure.status]


def test_shares_are_of_all_drawn_reports() -> None:
    failures = (
        ReportedFailure("one", "hang", ["vllm#1"], sample=1, cases=["vllm-1"]),
        ReportedFailure("two", "hang", ["vllm#2"], sample=2, unknown=True),
    )
    rows = {row[0]: row[1:] for row in shares(MostReported(10, failures)).rows}
    assert rows["proven here"] == ("1", "50%", "10%")
    assert rows["unknown"] == ("1", "50%", "20%")
    assert rows["another failure"] == ("", "", "70%")
