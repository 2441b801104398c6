"""``vllm-regress validate``: proves cases in all their evidence environments and writes the proof beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..cases.model import Case, select
from ..cases.results import TestResult
from ..errors import UsageError
from ..runner import runner as runs
from ..runner.impostors import try_impostors
from ..runner.matrix import in_order, side_by_side
from ..runner.slots import machine_room
from ..util.paths import writable_root
from ..util.signals import terminate_as_interrupt
from .context import (
    HELP,
    INTERRUPTED,
    OK,
    UNEXPECTED,
    Device,
    Invocation,
    Jobs,
    On,
    Source,
    WheelIndex,
    carrier,
    check_device,
    invocation,
    say,
    warn,
)

RACY_TRIALS = 5
FULL = ("--vllm-full-deadlines",)
"""A verdict that ends a wait early elsewhere stands on one here that did not."""

app = typer.Typer(context_settings=HELP)


@app.command()
def validate(
    context: typer.Context,
    case_ids: Annotated[list[str] | None, typer.Argument(metavar="CASE", help="Ids of cases.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All cases.")] = False,
    stale: Annotated[
        bool,
        typer.Option("--stale", help="Those cases whose evidence is missing or of another day's case, test or lock."),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Run nothing: say which evidence files are missing or stale.")
    ] = False,
    trials: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=100,
            help=f"Run all tests N times (default: 1; {RACY_TRIALS} where the case is racy).",
        ),
    ] = None,
    device: Device = None,
    jobs: Jobs = None,
    on: On = None,
    commits: Annotated[
        bool,
        typer.Option(
            "--commits",
            help="Check fixed-by and broken-by instead: bisect the clone of --source between the releases of the evidence.",
        ),
    ] = False,
    env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --commits: the environment that commits are laid over."),
    ] = None,
    branch: Annotated[
        str,
        typer.Option(metavar="REV", help="With --commits: where a release without a tag is looked for, by its day."),
    ] = "HEAD",
    source: Source = None,
    wheel_index: WheelIndex = None,
    results: Annotated[
        Path | None, typer.Option(metavar="DIR|FILE.json", help="Write the results of the runs there as JSON.")
    ] = None,
) -> None:
    """Prove cases: REPRODUCED in each affected evidence environment, FIXED in each fixed one, the control leg passed, impostors rejected.

    Impostors are failures that are not the case's own: an unrelated exception, the engine killed or stopped, an empty answer, an error
    status, a log full of other cases' texts, a wrong argument. None may be taken for the documented failure.

    Writes evidence.json beside case.toml for each case that is proven, with versions, date and counts, and observations.json, what was seen, for
    `vllm-regress judge`; commit both with the case.
    With --on the runs are on the cluster, and impostors are tried here.
    A case that is not proven keeps the file it had. Exit code 0: all proven (with --check: all evidence fits).

    With --commits the cases named are not proven anew: the commits at which their failures came and went are searched for, confirmed, compared with
    what case.toml names, and written into evidence.json. What was found is kept until the case names it.
    """
    from ..cases import lint, proof, rejudge
    from ..cases.results import RunResult

    check_device(device)
    if not (case_ids or everything or stale or check):
        raise UsageError("name cases, or give --all, --stale or --check")
    if commits and (everything or stale or check or not case_ids):
        raise UsageError("--commits takes minutes for each case: name cases, without --all, --stale and --check")
    if not commits and (env is not None or branch != "HEAD"):
        raise UsageError("--env and --branch are for --commits")
    ours = invocation(context)
    beside = ours.cases()
    cases = select(beside, case_ids or [])
    if commits:
        traced = [_traced(case, ours, env, branch, trials, device) for case in cases]
        raise typer.Exit(OK if all(traced) else UNEXPECTED)
    chosen = carrier(on, None, jobs, say)
    if check or stale:
        faults = {case.id: _faults(case, ours.command("validate", case.id)) for case in cases}
        for line in (line for found in faults.values() for line in found):
            (say if check else warn)(line)
        if check:
            raise typer.Exit(UNEXPECTED if any(faults.values()) else OK)
        cases = tuple(case for case in cases if faults[case.id])
    for line in (line for case in cases for line in lint.warnings(case, beside)):
        warn(f"warning: {line}")
    refused = {case.id: why for case in cases if (why := lint.meaningless(case))}
    for name, why in refused.items():
        say(f"NOT PROVEN  {name}\n    symptom.pattern {why}")
    cases = tuple(case for case in cases if case.id not in refused)
    wanted = {case.id: trials or (RACY_TRIALS if case.racy else 1) for case in cases}
    plain = runs.Options(device, None, ours.pytest_args, ours.cases_dir)

    def run(planned: Sequence[runs.Job], options: runs.Options) -> runs.Outcome:
        return side_by_side(planned, jobs or machine_room(), runs.build_with_cache(say), options, say)

    found: list[list[TestResult]] = []
    outcome = None
    with terminate_as_interrupt():
        for trial in range(max(wanted.values(), default=0)):
            todo = [case for case in cases if wanted[case.id] > trial]
            planned = runs.plan(todo, all_evidence=True)
            if on is None:
                runs.check_environments(planned)
            proving = dataclasses.replace(plain, pytest_args=(*FULL, *ours.pytest_args))
            outcome = run(planned, proving) if on is None else in_order(planned, chosen, proving, say)
            found.append(list(outcome.run.results))
            runs.keep(outcome.run, results, writable_root() / "results", say)
            if outcome.interrupted:
                warn("interrupted: nothing was proven")
                raise typer.Exit(INTERRUPTED)
    again = {case.id: ours.command("validate", case.id) for case in cases}
    proofs = {case.id: proof.prove(case, found[: wanted[case.id]], again=again[case.id]) for case in cases}
    shown = [case for case in cases if not proofs[case.id][1]]
    with terminate_as_interrupt():
        met = try_impostors(shown, plain, run, say)
    failed = bool(refused)
    for case in cases:
        made, wrong = proofs[case.id]
        made, wrong = (made, wrong) if wrong else proof.tried(case, made, met, again=again[case.id])
        failed |= bool(wrong)
        if wrong:
            say(f"NOT PROVEN  {case.id}")
            for line in wrong:
                say(f"    {line}")
        else:
            rejudge.keep(case, [RunResult(tuple(trial)) for trial in found[: wanted[case.id]]])
            say(f"PROVEN      {case.id}: {proof.write(case, proof.with_commits(case, made))}")
    raise typer.Exit(UNEXPECTED if failed else OK)


def _traced(case: Case, ours: Invocation, env: str | None, branch: str, trials: int | None, device: str | None) -> bool:
    """Whether the commits at which the failure came and went are those that the case names; if so they are in its evidence."""
    from ..bisection.documented import How, ends_of, trace
    from ..cases import proof

    if wrong := proof.check(case, again=ours.command("validate", case.id), commits=False):
        say(f"NOT TRACED  {case.id}\n    " + "\n    ".join(wrong))
        return False
    evidence = proof.read(case.directory / proof.FILE)
    build = runs.build_with_cache(say)
    runner = runs.Runner(build, runs.Options(device, None, ours.pytest_args, ours.cases_dir), say)
    how = How(env, branch, trials or (RACY_TRIALS if case.racy else 1), arguments=ours.pytest_args)
    found, kept = [], []
    try:
        with terminate_as_interrupt():
            for ends in ends_of(case, evidence):
                say(f"{case.id}: {'fixed' if ends.is_fix else 'broken'} between {ends}, as its evidence has it")
                made, faults, notes = trace(case, ends, how, runner, build, say)
                found += made
                wrong += faults
                kept.append(notes)
    except KeyboardInterrupt:
        warn("interrupted: the same command goes on from here")
        raise typer.Exit(INTERRUPTED) from None
    if wrong:
        say(f"NOT TRACED  {case.id}; the same command goes on with what was found\n    " + "\n    ".join(wrong))
        return False
    written = proof.write(case, dataclasses.replace(evidence, commits=tuple(found)))
    for notes in kept:
        notes.forget()
    for each in found:
        say(f"TRACED      {case.id}: {each.kind} {each.address}, {each.runs} runs, {each.seconds:.0f} s: {written}")
    return True


def _faults(case: Case, again: str) -> list[str]:
    """Why the evidence file of a case proves nothing, or contradicts the case."""
    from ..cases import lint, proof

    file = case.directory / proof.FILE
    if why := lint.meaningless(case):
        return [f"{case.path}: symptom.pattern {why}"]
    return proof.check(case, again=again) or [f"{file}: {line}" for line in lint.contradictions(case, proof.read(file))]
