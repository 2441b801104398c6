"""The results of a run of upstream's tests for people and as JSON, and the list of tests that need a trained model."""

from __future__ import annotations

import json

from pytest_vllm_regress.upstream import report
from pytest_vllm_regress.upstream.meaning import listed_tests
from pytest_vllm_regress.upstream.run import UpstreamRun
from pytest_vllm_regress.upstream.triage import TestResult, UpstreamOutcome

RUN = UpstreamRun(
    (
        TestResult("tests/a.py::one", UpstreamOutcome.PASSED),
        TestResult("tests/a.py::two", UpstreamOutcome.FAILED, "E: why"),
    ),
    ("tests/a.py", "tests/b.py"),
    ("owner/gguf",),
    12.3,
)


def test_failures_have_their_reason_and_files_without_results_are_named() -> None:
    assert list(report.lines(RUN)) == [
        "failed: tests/a.py::two: E: why",
        "1 of 2 files in 12 s; passed of the tests that were not skipped: 50%",
        "without a result, because the run ended before or they have no tests here: tests/b.py",
        "no stand-in for owner/gguf",
    ]
    assert report.count_rows(RUN.results) == [("passed", "1"), ("failed", "1")]


def test_the_document_has_every_result() -> None:
    document = json.loads(report.document(RUN, "0.8.5", "c" * 40))
    assert (document["vllm"], document["files"]) == ("0.8.5", ["tests/a.py", "tests/b.py"])
    assert [result["outcome"] for result in document["results"]] == ["passed", "failed"]


def test_the_list_names_tests_by_file() -> None:
    file = "tests/entrypoints/openai/test_chat.py"
    assert f"{file}::test_complex_message_content" in listed_tests([file, "tests/unknown.py"])
    assert listed_tests(["tests/unknown.py"]) == ()
