"""The report of a running pytest is read by offset, and only its complete lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.cases.results import RunResult, TestResult, append_results
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.runner.pytest_run import ReportReader


def run_of(*case_ids: str) -> RunResult:
    return RunResult(
        tuple(TestResult(case_id, "t", Verdict.FIXED, "passed", "sim", "a") for case_id in case_ids)
    )


def test_a_report_is_read_as_it_grows(tmp_path: Path) -> None:
    reader = ReportReader(tmp_path / "report.jsonl")
    assert reader.read() == RunResult()
    append_results(reader.path, run_of("one"))
    assert reader.read() == run_of("one")
    assert reader.read() == RunResult()
    append_results(reader.path, run_of("two"))
    line = reader.path.read_bytes().splitlines(keepends=True)[-1]
    with reader.path.open("ab") as report:
        report.write(line[:20])
        report.flush()
        assert reader.read() == run_of("two")
        report.write(line[20:])
    assert reader.read() == run_of("two")
    assert (reader.results, reader.read_rest()) == (run_of("one", "two", "two"), "")


def test_a_truncated_report_is_read_again_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    append_results(path, run_of("one"))
    append_results(path, run_of("two"), truncate=True)
    assert ReportReader(path).read() == run_of("two")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "wrote no report"),
        (b"{", "the last line is incomplete"),
        (b"{\n", "not valid JSON"),
        (b'{"schema": 1}\n', "schema = 1"),
    ],
)
def test_what_is_wrong_with_a_report_is_described(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    reader = ReportReader(tmp_path / "report.jsonl")
    if content is not None:
        reader.path.write_bytes(content)
    assert reason in reader.read_rest()


def test_a_damaged_line_is_an_error_while_pytest_runs(tmp_path: Path) -> None:
    reader = ReportReader(tmp_path / "report.jsonl")
    reader.path.write_bytes(b"no JSON\n")
    with pytest.raises(UsageError, match="not valid JSON"):
        reader.read()
