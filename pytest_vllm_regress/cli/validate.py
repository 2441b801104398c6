"""``vllm-regress validate``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..cases.model import Case
from ..cases.proofs import lint
from ..cases.proofs.impostors import ImpostorRun
from ..defaults import RACY_TRIALS
from ..errors import UsageError
from ..history.candidates import CandidateRunner
from ..history.trace import TraceOptions, trace_case
from ..runner.batch import Batch, RunOptions, RunOutcome
from ..runner.executors import SequentialExecutor, build_with_cache, check_environments
from ..runner.progress import BatchHeaders, Say
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
from ..runner.slots import machine_room
from ..util.paths import writable_root
from ..util.signals import terminate_as_interrupt
from .context import (
    INTERRUPTED,
    OK,
    UNEXPECTED,
    BaseEnvironment,
    Branch,
    Device,
    Invocation,
    Jobs,
    On,
    Results,
    Trials,
    complete_case_ids,
    invocation,
    make_executor,
    say,
    warn,
)

FULL_DEADLINES = ("--vllm-full-deadlines",)
"""A proof must not depend on a wait that ended early."""
All = Annotated[bool, typer.Option("--all", help="All cases.")]
Stale = Annotated[
    bool,
    typer.Option(
        "--stale",
        help="Cases whose evidence is missing or out of date (the case, a test or the lock changed).",
    ),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Run nothing: list the evidence files that are missing or out of date, and count the "
        "others.",
    ),
]
Commits = Annotated[
    bool,
    typer.Option(
        "--commits",
        help="Check fixed-by and broken-by instead: bisect the clone of --source between the "
        "releases of the evidence.",
    ),
]


def validate(
    context: typer.Context,
    case_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="CASE", help="Ids of cases.", autocompletion=complete_case_ids),
    ] = None,
    everything: All = False,
    stale: Stale = False,
    check: Check = False,
    trials: Trials = None,
    device: Device = None,
    jobs: Jobs = None,
    on: On = None,
    commits: Commits = False,
    env: BaseEnvironment = None,
    branch: Branch = "HEAD",
    out: Results = None,
) -> None:
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
    appeared and disappeared are searched (from --env on, and for a release without a tag on
    --branch), confirmed, compared with case.toml and written into evidence.json. Results are kept
    until case.toml names the right commit.
    """
    if not (case_ids or everything or stale or check):
        raise UsageError("name cases, or give --all, --stale or --check")
    if everything and case_ids:
        raise UsageError(
            f"--all proves every case: leave it out to prove {' '.join(case_ids)} only"
        )
    if commits and (everything or stale or check or not case_ids):
        raise UsageError(
            "--commits takes minutes for each case: name cases, without --all, --stale and --check"
        )
    if not commits and (env is not None or branch != "HEAD"):
        raise UsageError("--env and --branch are for --commits")
    command = invocation(context)
    cases = command.select(case_ids or [])
    options = command.run_options(device)
    if commits:
        raise typer.Exit(_trace(cases, command, TraceOptions(env, branch), trials, options))
    if check or stale:
        left = _without_proof(cases, command, say if check else warn, record=not check)
        if check:
            say(f"{len(cases) - len(left)} of {len(cases)} cases have a proof that is up to date")
            raise typer.Exit(UNEXPECTED if left else OK)
        cases = left
    for line in (line for case in cases for line in lint.lint_case(case, command.loaded.cases)):
        warn(f"warning: {line}")
    request = ValidateRequest(cases, trials, lambda case_id: command.command("validate", case_id))
    check_destination(out)
    runner = _proof_runner(options, on, jobs, out)
    try:
        with terminate_as_interrupt():
            report = prove(request, runner)
    except KeyboardInterrupt:
        warn("interrupted: nothing was proven")
        raise typer.Exit(INTERRUPTED) from None
    for line in (line for case_report in report.cases for line in case_report.lines()):
        say(line)
    raise typer.Exit(OK if report.proven else UNEXPECTED)


def _without_proof(
    cases: Sequence[Case], command: Invocation, show: Say, *, record: bool
) -> tuple[Case, ...]:
    """Return the cases whose proof is missing or out of date, and say why."""
    problems = {
        case.id: evidence_problems(case, command.command("validate", case.id), record=record)
        for case in cases
    }
    for line in (line for lines in problems.values() for line in lines):
        show(line)
    return tuple(case for case in cases if problems[case.id])


def _proof_runner(
    options: RunOptions, on: str | None, jobs: int | None, results: Path | None
) -> ProofRunner:
    """Run evidence environments here or on the cluster ``on``, and impostors here; save the results
    of every run."""
    executor = make_executor(on, None, jobs, say)
    full_options = dataclasses.replace(options, pytest_args=(*FULL_DEADLINES, *options.pytest_args))

    def run_here(batches: Sequence[Batch], run_options: RunOptions) -> RunOutcome:
        machine = LocalMachine(build_with_cache(say), jobs or machine_room())
        return run_batches(local_request(batches, machine, run_options, say))

    def run(batches: Sequence[Batch]) -> RunOutcome:
        if on is None:
            check_environments(batches, gpu=full_options.asks_for_gpu)
            outcome = run_here(batches, full_options)
        else:
            outcome = run_batches(
                RunRequest(batches, executor, full_options, batch_progress(full_options, say))
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
    trace_options: TraceOptions,
    trials: int | None,
    options: RunOptions,
) -> int:
    build = build_with_cache(say)
    batches = BatchRunner(SequentialExecutor(build), options, lambda: BatchHeaders(say))
    runner = CandidateRunner(batches.run, build, say)
    traced = []
    for case in cases:
        case_options = dataclasses.replace(
            trace_options,
            trials=trials or (RACY_TRIALS if case.racy else 1),
            arguments=options.pytest_args,
        )
        try:
            with terminate_as_interrupt():
                report = trace_case(
                    case, case_options, runner, lambda case_id: command.command("validate", case_id)
                )
        except KeyboardInterrupt:
            warn("interrupted: repeat the command to resume")
            return INTERRUPTED
        for line in report.lines():
            say(line)
        traced.append(report.path is not None)
    return OK if all(traced) else UNEXPECTED
