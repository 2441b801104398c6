"""The results of a run of upstream's tests for people and as JSON, and the list of tests that need
a trained model."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.surveys.upstream.tests import (
    FILE,
    ListedTest,
    UpstreamOutcome,
    UpstreamResult,
    UpstreamRun,
    listed_tests,
)
from pytest_vllm_regress.util import codec
from pytest_vllm_regress.util.documents import load_toml

RUN = UpstreamRun(
    (
        UpstreamResult("tests/a.py::one", UpstreamOutcome.PASSED),
        UpstreamResult("tests/a.py::two", UpstreamOutcome.FAILED, "E: why"),
    ),
    ("tests/a.py", "tests/b.py"),
    ("owner/gguf",),
    12.3,
    (Path("/d/one.txt"),),
)


def test_failures_have_their_reason_and_files_without_results_are_named() -> None:
    assert list(RUN.lines()) == [
        "failed: tests/a.py::two: E: why",
        "1 of 2 files in 12 s; passed of the tests that were not skipped: 50%",
        "without a result, because the run ended before or they have no tests here: tests/b.py",
        "dossiers of servers that did not start: /d/one.txt",
        "no stand-in for owner/gguf",
    ]


def test_the_document_has_every_result() -> None:
    document = codec.encode(RUN.to_json("0.8.5", "c" * 40))
    assert (document["vllm"], document["files"]) == ("0.8.5", ("tests/a.py", "tests/b.py"))
    assert [result["outcome"] for result in document["results"]] == ["passed", "failed"]


def test_the_list_names_tests_by_file() -> None:
    file = "tests/entrypoints/openai/test_chat.py"
    listed = listed_tests([file, "tests/unknown.py"])
    assert listed[f"{file}::test_complex_message_content"] == ListedTest(
        UpstreamOutcome.MEANING, "the answer to 1 + 1 is 2"
    )
    assert listed_tests(["tests/unknown.py"]) == {}


def test_every_entry_of_the_list_has_its_form() -> None:
    assert listed_tests(load_toml(FILE, 1024 * 1024))


@pytest.mark.parametrize("value", ['"text"', '{ needs = "luck", why = "x" }', '{ needs = "gpu" }'])
def test_an_entry_of_another_form_is_refused(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "listed.toml").write_text(f'["tests/a.py"]\ntest_x = {value}\n')
    monkeypatch.setattr("pytest_vllm_regress.surveys.upstream.tests.FILE", tmp_path / "listed.toml")
    with pytest.raises(UsageError, match=r"listed\.toml: .*tests/a\.py.*test_x"):
        listed_tests(["tests/a.py"])


def test_many_names_are_cut_short() -> None:
    run = UpstreamRun((), tuple(f"tests/{number}.py" for number in range(25)), (), 1.0)
    assert any(line.endswith("tests/19.py and 5 more") for line in run.lines())
