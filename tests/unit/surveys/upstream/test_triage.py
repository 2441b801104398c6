"""Results of a run of upstream's tests, read from its record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.surveys.upstream.tests import (
    ListedTest,
    UpstreamOutcome,
    counts,
    drop_torn_line,
    drop_unfinished,
    outcome_of,
    read_results,
    share_passed,
)


def record(*events: dict[str, object]) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def end(test: str, outcome: str = "passed", reason: str = "") -> dict[str, object]:
    return {"event": "end", "test": test, "outcome": outcome, "reason": reason, "seconds": 0.5}


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("AssertionError: assert 1 == 2", UpstreamOutcome.FAILED),
        ("ModuleNotFoundError: No module named 'librosa'", UpstreamOutcome.PACKAGE),
        (
            "pytest_vllm_regress.errors.UsageError: owner/x: no stand-in: there is no forged checkpoint",
            UpstreamOutcome.MODEL,
        ),
        (
            "RuntimeError: LFM2 tool parser could not locate <|x|>/<|y|> tokens in the tokenizer!",
            UpstreamOutcome.MODEL,
        ),
        (
            "ValueError: No valid tokenizer file found in the repo mistralai/Pixtral-12B-2409.",
            UpstreamOutcome.MODEL,
        ),
        ("AssertionError: Torch not compiled with CUDA enabled", UpstreamOutcome.KERNEL),
        (
            "AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'",
            UpstreamOutcome.KERNEL,
        ),
        (
            "Unsupported: the simulated device of pytest-vllm-regress cannot serve vLLM 0.8.5",
            UpstreamOutcome.KERNEL,
        ),
        (
            "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files",
            UpstreamOutcome.NETWORK,
        ),
    ],
)
def test_errors_say_what_a_test_needs(reason: str, outcome: UpstreamOutcome) -> None:
    assert outcome_of("failed", reason) is outcome


@pytest.mark.parametrize("entry", ["tests/a.py::test_x", "tests/a.py::*"])
def test_a_listed_test_that_fails_has_the_reason_of_the_list_for_all_parameters(entry: str) -> None:
    lines = record(
        end("tests/a.py::test_x[1]", "failed", "AssertionError"),
        end("tests/a.py::test_x[2]"),
        end("tests/a.py::test_x[3]", "failed", "ModuleNotFoundError: No module named 'librosa'"),
        {"event": "start", "test": "tests/a.py::test_x[4]"},
        end("tests/b.py::test_x", "failed", "AssertionError"),
    )
    results = read_results(lines, {entry: ListedTest(UpstreamOutcome.MEANING, "it answers 2")})
    assert [
        (result.file, result.outcome, result.reason)
        for result in results
        if result.file == "tests/a.py"
    ] == [
        ("tests/a.py", UpstreamOutcome.MEANING, "it answers 2"),
        ("tests/a.py", UpstreamOutcome.PASSED, ""),
        ("tests/a.py", UpstreamOutcome.PACKAGE, "ModuleNotFoundError: No module named 'librosa'"),
        ("tests/a.py", UpstreamOutcome.MEANING, "it answers 2"),
    ]
    assert [result.outcome for result in results if result.file == "tests/b.py"] == [
        UpstreamOutcome.FAILED
    ]


def test_a_failed_teardown_replaces_a_pass_and_a_test_without_an_end_failed() -> None:
    results = read_results(
        record(
            {"event": "start", "test": "a"},
            end("a"),
            end("a", "failed", "E: teardown"),
            {"event": "start", "test": "b"},
        )
    )
    assert [(result.test, result.outcome) for result in results] == [
        ("a", UpstreamOutcome.FAILED),
        ("b", UpstreamOutcome.FAILED),
    ]
    assert "ended during" in results[1].reason


def test_the_share_leaves_out_what_was_skipped() -> None:
    results = read_results(record(end("a"), end("b", "failed", "x"), end("c", "skipped", "no GPU")))
    assert share_passed(results) == 0.5
    assert counts(results) == {
        UpstreamOutcome.PASSED: 1,
        UpstreamOutcome.FAILED: 1,
        UpstreamOutcome.UPSTREAM: 1,
    }
    assert share_passed([]) is None


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"event": 1}'])
def test_a_line_that_is_no_event_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match="no event"):
        read_results(line)


def test_a_line_that_was_cut_off_is_dropped(tmp_path: Path) -> None:
    """Regression: pytest was killed while it wrote, and all results were lost."""
    file = tmp_path / "record.jsonl"
    file.write_text(record(end("a")) + '{"event": "en')
    drop_torn_line(file)
    (result,) = read_results(file.read_text())
    assert result.test == "a"
    file.write_text("")
    drop_torn_line(file)
    assert file.read_text() == ""


def test_an_end_without_an_outcome_is_a_failure() -> None:
    """Regression: KeyError."""
    (result,) = read_results('{"event": "end", "test": "a"}')
    assert (result.outcome, result.seconds) == (UpstreamOutcome.FAILED, 0.0)


@pytest.mark.parametrize("seconds", ["1e400", "1" * 400, "-1", "true", "null", '"x"', "[]"])
def test_an_event_with_odd_values_is_refused(seconds: str) -> None:
    """Regression: OverflowError for a huge number."""
    with pytest.raises(UsageError, match="no event"):
        read_results(f'{{"event": "end", "test": "a", "seconds": {seconds}}}')


def test_what_an_interrupted_run_had_begun_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    begun: list[dict[str, object]] = [{"event": "start", "test": test} for test in ("a", "b")]
    path.write_text(record(begun[0], end("a"), begun[1]) + '{"torn')
    drop_unfinished(path)
    assert path.read_text() == record(begun[0], end("a"))
