"""``vllm-regress validate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..cases.model import Case
from ..cases.proofs.impostors import ImpostorRun
from ..defaults import RACY_TRIALS
from ..errors import UsageError
from ..history.candidates import CandidateRunner
from ..history.trace import TraceOptions, trace_case
from ..runner.batch import Batch, RunOptions, RunOutcome
from ..runner.executors import SequentialExecutor, build_with_cache, check_environments
from ..runner.progress import BatchHeaders
from ..runner.prove import ProofRunner, ValidateRequest, evidence_problems, try_impostors
from ..runner.prove import validate as prove
from ..runner.run import (
    BatchRunner,
    LocalMachine,
    RunRequest,
    batch_progress,
    check_destination,
    local_request,
    run_batches,
    save_results,
)
from ..runner.slots import machine_room, worker_room
from ..util.paths import writable_root
from .context import OK, UNEXPECTED, Device, Invocation, Names, make_executor, say, warn, warn_of

FULL_DEADLINES = ("--vllm-full-deadlines",)
"""A proof must not depend on a wait that ended early."""


def validate(
    command: Invocation,
    case_ids: Names = None,
    everything: bool = False,
    check: bool = False,
    trials: int | None = None,
    device: Device = None,
    jobs: int | None = None,
    on: str | None = None,
    commits: bool = False,
    base_env: str | None = None,
    out: Path | None = None,
) -> int:
    """Prove cases and write the proof beside them.

    Proven means: REPRODUCED in each affected evidence environment, FIXED in each fixed one, the
    control leg passed, impostors rejected. Impostors are failures that are not the case's own: an
    unrelated exception, a killed or stopped engine, an empty answer, an error status, a log full of
    other cases' texts, a wrong argument. None of them may count as the documented failure.

    For each proven case, evidence.json (versions, date, counts) and observations.json (for
    `vllm-regress judge`) are written beside case.toml; commit both. A case that is not proven keeps
    its files. With --on the runs are on the cluster, the impostors here.
    Exit code 0: all proven (with --check: all evidence is up to date).

    With --commits the named cases are not proven again. Instead the commits at which the failure
    appeared and disappeared are searched (from --env on), confirmed, compared with case.toml and
    written into evidence.json. Results are kept until case.toml names the right commit: repeat an
    interrupted command to resume.
    """
    if everything and case_ids:
        raise UsageError(
            f"--all proves every case: leave it out to prove {' '.join(case_ids)} only"
        )
    if commits and (everything or check or not case_ids):
        raise UsageError(
            "--commits takes minutes for each case: name cases, without --all and --check"
        )
    if not commits and base_env is not None:
        raise UsageError("--env is for --commits")
    cases = command.select(case_ids)
    options = command.run_options(device)
    if commits:
        return _trace(cases, command, base_env, trials, options)
    if check or not (case_ids or everything):
        left: tuple[Case, ...] = ()
        for case in cases:
            repeat = command.command("validate", case.id)
            if problems := evidence_problems(case, repeat, record=not check):
                (say if check else warn)("\n".join(problems))
                left = (*left, case)
        if check or not left:
            say(f"{len(cases) - len(left)} of {len(cases)} cases have a proof that is up to date")
            return UNEXPECTED if left else OK
        cases = left
    for case in cases:
        warn_of(case, command.loaded.cases)
    request = ValidateRequest(cases, trials, lambda case_id: command.command("validate", case_id))
    check_destination(out)
    report = prove(request, _proof_runner(options, on, jobs, out))
    for case_report in report.cases:
        say(*case_report.lines())
    return OK if report.proven else UNEXPECTED


def _proof_runner(
    options: RunOptions, on: str | None, jobs: int | None, results: Path | None
) -> ProofRunner:
    """Run evidence environments here or on the cluster ``on``, and impostors here; save the results
    of every run."""
    full_options = replace(options, pytest_args=(*FULL_DEADLINES, *options.pytest_args))

    def run_here(batches: Sequence[Batch], run_options: RunOptions, workers: int = 1) -> RunOutcome:
        machine = LocalMachine(build_with_cache(say), jobs or machine_room(), workers=workers)
        return run_batches(local_request(batches, machine, run_options, say))

    def run(batches: Sequence[Batch]) -> RunOutcome:
        if on is None:
            check_environments(batches, gpu=full_options.asks_for_gpu)
            outcome = run_here(batches, full_options, worker_room())
        else:
            outcome = run_batches(
                RunRequest(
                    batches,
                    make_executor(on, jobs, say),
                    full_options,
                    batch_progress(full_options, say),
                )
            )
        try:
            save_results(outcome.run, results, writable_root() / "results", say)
        except UsageError as error:  # the disk filled up; the proof goes on
            warn(str(error))
        return outcome

    def impostors(cases: Sequence[Case]) -> Sequence[ImpostorRun]:
        return try_impostors(cases, options, run_here, say)

    return ProofRunner(run, impostors)


def _trace(
    cases: Sequence[Case],
    command: Invocation,
    env: str | None,
    trials: int | None,
    options: RunOptions,
) -> int:
    build = build_with_cache(say)
    batches = BatchRunner(SequentialExecutor(build), options, lambda: BatchHeaders(say))
    trace_options = TraceOptions(env, options.pytest_args)
    traced = []
    for case in cases:
        runs = trials or (RACY_TRIALS if case.racy else 1)
        runner = CandidateRunner(batches.run, build, say, trials=runs)
        report = trace_case(
            case, trace_options, runner, lambda case_id: command.command("validate", case_id)
        )
        say(*report.lines())
        traced.append(report.path is not None)
    return OK if all(traced) else UNEXPECTED
