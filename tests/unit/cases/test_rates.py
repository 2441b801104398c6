"""How often a failure that depends on timing shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.proofs.fingerprint import code_fingerprint
from pytest_vllm_regress.cases.rates import Rate, recent_results, unsteady
from pytest_vllm_regress.cases.results import RunResult, TestResult, write_results
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.cli.context import Invocation
from pytest_vllm_regress.runner.batch import RunOptions, RunOutcome
from pytest_vllm_regress.runner.progress import Progress
from pytest_vllm_regress.runner.run import RunRequest
from tests.helpers.cases import CaseFile


def result(verdict: Verdict, environment: str = "old", test: str = "t") -> TestResult:
    return TestResult("demo", test, verdict, "because", "sim", environment)


@pytest.mark.parametrize(
    ("shown", "runs", "trials"), [(1, 1, 1), (1, 2, 7), (3, 5, 6), (9, 10, 2), (1, 1000, 100)]
)
def test_trials_for_99_percent(shown: int, runs: int, trials: int) -> None:
    assert Rate("demo", "old", shown, runs).trials == trials


def test_a_test_that_shows_the_failure_in_some_runs_is_unsteady() -> None:
    results = [
        *(result(verdict) for verdict in (Verdict.REPRODUCED, Verdict.UNEXPECTEDLY_FIXED)),
        result(Verdict.INCONCLUSIVE),
        # Two environments, or two tests, may differ.
        *(result(verdict, "new") for verdict in (Verdict.FIXED, Verdict.FIXED)),
        *(result(Verdict.REPRODUCED, test=name) for name in ("u", "v")),
    ]
    assert unsteady(results) == (Rate("demo", "old", 1, 2),)


def test_recent_results_are_those_of_the_present_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    case = CaseFile().write(tmp_path / "cases", {"test_demo.py": ""})
    code = code_fingerprint(case.directory)
    folder = tmp_path / "cache" / "results"
    assert recent_results([case]) == []
    for number, (verdict, of) in enumerate(
        [(Verdict.REPRODUCED, code), (Verdict.FIXED, "0" * 16), (Verdict.FIXED, code)]
    ):
        other = replace(result(verdict), case_id="other")
        run = RunResult((replace(result(verdict), code=of), other))
        write_results(folder / f"{number}.json", run)
    (folder / "broken.json").write_text("[]")
    found = recent_results([case])
    assert [entry.verdict for entry in found] == [Verdict.REPRODUCED, Verdict.FIXED]


def test_run_says_that_a_case_depends_on_timing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    case = CaseFile(old=("vllm-0.8.4",), new=("vllm-0.8.5",)).write(tmp_path / "cases")
    request = RunRequest((), cast(Any, None), RunOptions(), Progress())
    monkeypatch.setattr(Invocation, "request_here", lambda *arguments: request)
    code = code_fingerprint(case.directory)
    for number, verdict in enumerate((Verdict.REPRODUCED, Verdict.UNEXPECTEDLY_FIXED)):
        seen = replace(result(verdict, "vllm-0.8.4"), code=code)
        outcome = RunOutcome(RunResult((seen,)))
        monkeypatch.setattr("pytest_vllm_regress.runner.run.run_batches", lambda _, o=outcome: o)
        cli.main(["--cases", str(tmp_path / "cases"), "run", "demo", "--out", str(tmp_path / "o")])
        told = capsys.readouterr().err
        assert ("the failure showed in 1 of 2 runs of one test" in told) is (number == 1)
        copies = tmp_path / "cache" / "results"
        next(copies.glob("vllm-regress-*")).rename(copies / f"{number}.json")  # of another second
    assert f"validate demo --trials {Rate('demo', 'x', 1, 2).trials}" in told
