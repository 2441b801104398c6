"""Which case meets the impostors where, and what a run that leaves no record is worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_vllm_regress.cases import impostors
from pytest_vllm_regress.cases.impostors import Impostor, Trial
from pytest_vllm_regress.cases.model import Case, find_cases
from pytest_vllm_regress.cases.results import RunResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.runner.impostors import try_impostors
from pytest_vllm_regress.runner.runner import Job, Options, Outcome
from tests.helpers import ROOT

CASES = tuple(case for case in find_cases(ROOT / "cases") if case.id in ("vllm-17173", "lmfe-124"))


class FakeRun:
    """Each job writes one trial, but the one in the environment that it keeps silent about."""

    def __init__(self, silent: str = "", interrupted: bool = False) -> None:
        self.silent, self.interrupted = silent, interrupted
        self.seen: list[Job] = []

    def __call__(self, jobs: Sequence[Job], options: Options) -> Outcome:
        assert (options.device, options.workers) == ("sim", "0")  # a worker more would try them on another test
        (folder,) = (Path(each.partition("=")[2]) for each in options.pytest_args)
        for number, job in enumerate(jobs):
            self.seen.append(job)
            if job.environment != self.silent:
                found = Trial("demo", job.environment, "t", Impostor.ENGINE_KILLED, Verdict.INCONCLUSIVE, "")
                impostors.write(folder / f"{number}.json", [found])
        return Outcome(RunResult(), interrupted=self.interrupted)


def met(run: FakeRun, cases: Sequence[Case] = CASES) -> tuple[Trial, ...]:
    return try_impostors(cases, Options("sim"), run, lambda line: None)


def firsts(cases: Sequence[Case]) -> set[str]:
    return {side[0] for case in cases for side in (case.evidence.affected, case.evidence.fixed) if side}


def test_the_first_environment_of_each_side() -> None:
    run = FakeRun()
    trials = met(run)
    assert {job.environment for job in run.seen} == firsts(CASES) == {trial.environment for trial in trials}
    assert all(job.cases for job in run.seen)


def test_what_left_no_record_has_no_trials() -> None:
    silent = min(firsts(CASES))
    assert {trial.environment for trial in met(FakeRun(silent))} == firsts(CASES) - {silent}


def test_an_interrupted_run_proves_nothing() -> None:
    with pytest.raises(KeyboardInterrupt):
        met(FakeRun(interrupted=True))


def test_no_cases_need_no_run() -> None:
    run = FakeRun()
    assert met(run, ()) == () and not run.seen


def test_a_repeat_line_leads_to_the_same_cases() -> None:
    assert Options().repeat("a", "vllm-0.8.5") == "vllm-regress run a --env vllm-0.8.5"
    elsewhere = Options(device="sim", cases_dir=Path("my cases"))
    assert elsewhere.repeat("a", "x") == "vllm-regress --cases 'my cases' run a --env x --device sim"
