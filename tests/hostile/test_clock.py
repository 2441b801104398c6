"""A wall clock that is set back, or has no date, while tests run: durations do not come from it, and
no result is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_vllm_regress.cases.results import RunResult, TestResult, read_results
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.runner.batch import Batch, inconclusive_results
from pytest_vllm_regress.runner.run import KEPT_COPIES, save_results
from tests.helpers.cases import CaseFile
from tests.integration.plugin.conftest import Demo, demo

__all__ = ["demo"]

CLOCK = """
import itertools, time
hours = itertools.count()
time.time = lambda: {start} - 3600 * next(hours)
"""


@pytest.mark.parametrize(
    ("function", "verdict"), [("raises", Verdict.REPRODUCED), ("one", Verdict.INCONCLUSIVE)]
)
@pytest.mark.parametrize("start", [1e9, 0])
def test_a_clock_that_is_set_back_changes_no_verdict(
    demo: Demo,
    pytester: pytest.Pytester,
    affected_target: Path,
    function: str,
    verdict: Verdict,
    start: float,
) -> None:
    demo(function)
    pytester.makeconftest(CLOCK.format(start=start))
    pytester.runpytest_subprocess(f"--vllm-env={affected_target}", "--vllm-report=out.json")
    (result,) = read_results(pytester.path / "out.json").results
    assert result.verdict is verdict
    assert 0 < result.duration_s < 600
    assert 0 <= result.started_at <= start


def test_a_case_without_a_test_has_a_result_before_1970(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: -5.0)
    case = CaseFile().write(tmp_path)
    (result,) = inconclusive_results(Batch("old", (case,), {}), (case,), "why")
    assert result.started_at == 0


def test_the_newest_copy_of_results_is_kept_whatever_its_date(tmp_path: Path) -> None:
    run = RunResult((TestResult("a", "t", Verdict.FIXED, "passed", "sim", "e"),))
    for second in range(KEPT_COPIES):
        save_results(run, None, tmp_path, print, now=1e9 + second)
    save_results(run, None, tmp_path, print, now=1e8)
    assert (tmp_path / f"vllm-regress-19730303T094640Z-{os.getpid()}.json").exists()
