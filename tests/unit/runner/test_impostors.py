"""Where each case is tried against impostors, and what happens when a run writes no trials."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.proofs import impostors
from pytest_vllm_regress.cases.proofs.impostors import Impostor, ImpostorTrial
from pytest_vllm_regress.cases.results import RunResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.runner.batch import Batch, RunOptions, RunOutcome
from pytest_vllm_regress.runner.prove import try_impostors
from tests.helpers.cases import project_cases

CASES = tuple(case for case in project_cases() if case.id in ("vllm-17173", "lmfe-124"))


class FakeRun:
    """Writes one trial for each batch except in the environment ``silent``."""

    def __init__(self, silent: str = "", interrupted: bool = False) -> None:
        self.silent, self.interrupted = silent, interrupted
        self.batches_run: list[Batch] = []

    def __call__(self, batches: Sequence[Batch], options: RunOptions) -> RunOutcome:
        assert (options.device, options.workers) == (
            "sim",
            "0",
        )  # a worker more would try them on another test
        assert options.live  # no lines of verdicts, which these runs do not have
        (folder,) = (Path(argument.partition("=")[2]) for argument in options.pytest_args)
        for number, batch in enumerate(batches):
            self.batches_run.append(batch)
            if batch.environment != self.silent:
                trial = ImpostorTrial(
                    "demo", batch.environment, "t", Impostor.ENGINE_KILLED, Verdict.INCONCLUSIVE, ""
                )
                impostors.write_trials(folder / f"{number}.json", [trial])
        return RunOutcome(RunResult(), interrupted=self.interrupted)


def met(run: FakeRun, cases: Sequence[Case] = CASES) -> tuple[ImpostorTrial, ...]:
    return try_impostors(cases, RunOptions("sim"), run, lambda line: None)


def firsts(cases: Sequence[Case]) -> set[str]:
    return {
        side[0] for case in cases for side in (case.evidence.affected, case.evidence.fixed) if side
    }


def test_impostors_are_tried_in_the_first_environment_of_each_side() -> None:
    run = FakeRun()
    trials = met(run)
    assert (
        {batch.environment for batch in run.batches_run}
        == firsts(CASES)
        == {trial.environment for trial in trials}
    )
    assert all(batch.cases for batch in run.batches_run)


def test_an_environment_without_a_record_has_no_trials() -> None:
    silent = min(firsts(CASES))
    assert {trial.environment for trial in met(FakeRun(silent))} == firsts(CASES) - {silent}


def test_an_interrupted_run_is_an_interruption() -> None:
    with pytest.raises(KeyboardInterrupt):
        met(FakeRun(interrupted=True))


def test_no_cases_need_no_run() -> None:
    run = FakeRun()
    assert met(run, ()) == () and not run.batches_run


def test_the_repeat_command_names_the_same_cases() -> None:
    assert RunOptions().repeat_command("a", "vllm-0.8.5") == "vllm-regress run a --env vllm-0.8.5"
    elsewhere = RunOptions(device="sim", cases_dir=Path("my cases"))
    assert (
        elsewhere.repeat_command("a", "x")
        == "vllm-regress --cases 'my cases' run a --env x --device sim"
    )
