"""Prove cases: run all trials in the evidence environments, try impostors, and write the proof
beside each case."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..cases import needs, recording
from ..cases.model import Case
from ..cases.proofs import lint, proof, rejudge
from ..cases.proofs.impostors import ImpostorRun, read_impostor_runs
from ..cases.proofs.proof import Proof
from ..cases.results import RunResult, TestResult
from ..defaults import RACY_TRIALS
from ..util.rundir import scratch
from .batch import Batch, RunOptions, RunOutcome
from .plan import plan_batches
from .progress import Say

logger = logging.getLogger("vllm_regress.validation")


@dataclass(frozen=True)
class ValidateRequest:
    """Cases to prove.

    ``trials``: runs of each case; None: 1, or ``RACY_TRIALS`` for a racy case.
    ``command``: from a case id to the command that validates the case, for messages.
    """

    cases: tuple[Case, ...]
    trials: int | None
    command: Callable[[str], str]

    def trials_of(self, case: Case) -> int:
        """What if a case is racy?

        Each of five trials must show it (in a bisection one suffices).
        """
        return self.trials or (RACY_TRIALS if case.racy else 1)


@dataclass(frozen=True)
class ProofRunner:
    """How cases are run. ``run``: batches in evidence environments, to their full deadlines.

    ``try_impostors``: on cases that are proven so far.
    """

    run: Callable[[Sequence[Batch]], RunOutcome]
    try_impostors: Callable[[Sequence[Case]], Sequence[ImpostorRun]]


@dataclass(frozen=True)
class CaseReport:
    """Outcome for one case:

    ``path`` of the proof that was written, or the problems that prevent one.
    """

    case: Case
    problems: tuple[str, ...] = ()
    path: Path | None = None

    def lines(self) -> list[str]:
        """Return the text for people."""
        if self.path is None:
            return [
                f"NOT PROVEN  {self.case.id}: nothing was written",
                *(f"    {problem}" for problem in self.problems),
            ]
        return [f"PROVEN      {self.case.id}: {self.path}"]


@dataclass(frozen=True)
class ValidateReport:
    """Outcome of a validation, case by case."""

    cases: tuple[CaseReport, ...]

    @property
    def proven(self) -> bool:
        """Whether all cases were proven."""
        return all(report.path is not None for report in self.cases)


def evidence_problems(case: Case, command: str, *, record: bool = False) -> list[str]:
    """Return why the evidence file of a case is missing, out of date, or contradicts the case, or
    else why the recorded needs of its tests are.

    ``command`` makes new ones. ``record``: write the needs of a proven case instead, because that
    takes no engine.
    """
    file = case.directory / proof.FILE
    if reason := lint.pattern_problem(case):
        return [f"{case.path}: symptom.pattern {reason}"]
    if reason := lint.readme_problem(case):
        return [f"{case.directory}: {reason}"]
    problems = proof.check_proof(case, command=command) or [
        f"{file}: {line}" for line in lint.range_contradictions(case, proof.read_proof(file))
    ]
    if not problems and case.log:
        runs = rejudge.load_observations(case)
        problems = lint.log_problems(case, [result for run in runs for result in run.results])
    stale_needs = "" if problems else needs.needs_problem(case)
    if stale_needs and record:
        recording.write_needs(case)
    elif stale_needs:
        return [f"{stale_needs}; run `{command}`"]
    return problems


def validate(request: ValidateRequest, runner: ProofRunner) -> ValidateReport:
    """Prove the cases and write evidence.json, observations.json and needs.json beside those that
    are proven.

    A case that is not proven keeps its files. Raises ``KeyboardInterrupt``, before anything is
    written, when a run is interrupted.
    """
    bad_patterns = {
        case.id: reason for case in request.cases if (reason := lint.pattern_problem(case))
    }
    refused = [
        CaseReport(case, (f"symptom.pattern {bad_patterns[case.id]}",))
        for case in request.cases
        if case.id in bad_patterns
    ]
    cases = [case for case in request.cases if case.id not in bad_patterns]
    trials = _run_trials(request, cases, runner)
    proofs = {
        case.id: proof.make_proof(case, trials[case.id], command=request.command(case.id))
        for case in cases
    }
    impostor_runs = runner.try_impostors([case for case in cases if not proofs[case.id][1]])
    reports = []
    for case in cases:
        evidence, problems = proofs[case.id]
        if not problems:
            evidence, problems = proof.with_impostor_runs(case, evidence, impostor_runs)
        if not problems:
            results = [result for trial in trials[case.id] for result in trial]
            problems = lint.log_problems(case, results)
        if problems:
            if left_out := request.trials_of(case) - len(trials[case.id]):
                note = f"trials left out, because they cannot change that: {left_out}"
                problems = [*problems, note]
            reports.append(CaseReport(case, tuple(problems)))
        else:
            reports.append(CaseReport(case, path=_write(case, evidence, trials[case.id])))
    return ValidateReport((*refused, *reports))


def _run_trials(
    request: ValidateRequest, cases: Sequence[Case], runner: ProofRunner
) -> dict[str, list[list[TestResult]]]:
    """Return the results of each trial by case.

    A case whose trial does not show its sides takes no part in later ones.
    """
    trials: dict[str, list[list[TestResult]]] = {case.id: [] for case in cases}
    selected = list(cases)
    while selected:
        number = len(trials[selected[0].id]) + 1
        logger.info("trial %d of %s", number, ", ".join(case.id for case in selected))
        outcome = runner.run(plan_batches(selected, all_evidence=True))
        if outcome.interrupted:
            raise KeyboardInterrupt
        for case in selected:
            trials[case.id].append(
                [result for result in outcome.run.results if result.case_id == case.id]
            )
        selected = [
            case
            for case in selected
            if request.trials_of(case) > number and not proof.make_proof(case, trials[case.id])[1]
        ]
    return trials


def _write(case: Case, evidence: Proof, trials: Sequence[Sequence[TestResult]]) -> Path:
    rejudge.save_observations(case, [RunResult(tuple(trial)) for trial in trials])
    recording.write_needs(case)
    return proof.write_proof(case, proof.with_commits(case, evidence))


def try_impostors(
    cases: Sequence[Case],
    options: RunOptions,
    run: Callable[[Sequence[Batch], RunOptions], RunOutcome],
    say: Say,
) -> tuple[ImpostorRun, ...]:
    """Try every impostor on one test of each case, in the first environment of each side. ``run``
    runs batches.

    Trials that could not be made are missing from the result. Raises ``KeyboardInterrupt`` when the
    run was interrupted.
    """
    if not cases:
        return ()
    say("impostors: each case against failures that are not its own")
    with scratch() as place:
        folder = place / "trials"
        # One worker, so that one test of each case is tried: every worker of pytest-xdist would
        # choose a test of its own.
        arguments = (*options.pytest_args, f"--vllm-impostors={folder}")
        # These runs have no verdicts: a line for each case would call every case INCONCLUSIVE.
        trial_options = replace(options, workers="0", pytest_args=arguments, verbose=True)
        if run(plan_batches(cases), trial_options).interrupted:
            raise KeyboardInterrupt
        return tuple(
            trial for file in sorted(folder.glob("*.json")) for trial in read_impostor_runs(file)
        )
