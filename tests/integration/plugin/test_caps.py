"""The options for limits, and the session budget, in a run of pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.cases.results import read_results
from tests.integration.plugin.conftest import Demo

BUDGET = """
import pytest

@pytest.mark.vllm_case("demo-1")
@pytest.mark.parametrize("number", range(3))
def test_demo(vllm_probe, number):
    assert vllm_probe("fine" if number == 0 else "hangs", timeout=60) == 8
"""


@pytest.mark.slow
def test_after_the_budget_every_test_says_so(
    pytester: pytest.Pytester, demo: Demo, affected_target: Path
) -> None:
    demo(test=BUDGET)
    ran = pytester.runpytest_inprocess(
        "--vllm-limit=session=15", "--vllm-report=out.json", f"--vllm-env={affected_target}"
    )
    assert ran.ret == 1
    first, *others = read_results(pytester.path / "out.json").results
    assert first.verdict.value == "UNEXPECTEDLY_FIXED"
    assert [result.verdict.value for result in others] == ["INCONCLUSIVE"] * 2
    assert all(
        "the session's budget of 15 s is used up (--vllm-limit session)" in result.dossier
        for result in others
    )
    assert "nothing more is started" in others[1].dossier


@pytest.mark.parametrize("option", ["memory", "processes", "log", "engines"])
def test_bad_values(pytester: pytest.Pytester, option: str) -> None:
    ran = pytester.runpytest_inprocess(f"--vllm-limit={option}=lots")
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines(
        [f"*vllm_limit {option} = 'lots' (from the command line) is not a positive number*"]
    )
