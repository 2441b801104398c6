"""``vllm-regress matrix``."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..answers.audit.boundaries import Only, remaining
from ..environments import uv
from ..environments.sources import names_interpreter
from ..errors import UsageError
from ..output.formats import OutputFiles
from ..output.suite import rendered_suite, save_suite, with_known_failures
from ..output.suite_record import SuiteRecord
from ..output.table import print_to_console
from ..runner.batch import Batch, Executor, RunOptions, RunOutcome, digest
from ..runner.executors import ThreadsExecutor, check_environments
from ..runner.journal import Journal
from ..runner.plan import named_environments, plan_batches
from ..runner.progress import CaseLines, OutputInOrder, Progress
from ..runner.run import RunRequest, run_batches, run_suite
from ..runner.shards import CiSystem, ci_job_matrix, shard_count
from ..runner.slots import machine_room
from ..runner.suite import EnvironmentRun, TestOutcome, suite_command
from ..runner.sweep import DiskBudget, plan_sweep, sweep_cache
from ..util.files import write_atomically
from ..util.paths import writable_root
from ..util.sizes import GIB
from .context import (
    OK,
    Device,
    Invocation,
    Names,
    Paths,
    batches_of_shard,
    disk_limit,
    make_executor,
    print_columns,
    print_json,
    print_report,
    say,
)

LAST_RUN = "last"


def matrix(
    command: Invocation,
    case_ids: Names = None,
    environments: Names = None,
    releases: str | None = None,
    disk: str | None = None,
    only: list[Only] | None = None,
    dry_run: bool = False,
    format: Literal["text", "github", "buildkite", "gitlab"] = "text",
    device: Device = None,
    jobs: int | None = None,
    on: str | None = None,
    shard: str | None = None,
    fresh: bool = False,
    base: str | None = None,
    out: Paths = None,
) -> int:
    """Run cases over many environments: case by version.

    Without --env and --releases the evidence environments of the cases are used. A range as --env
    (--env '>=0.8,<0.12') means all environments of environments.toml with such a vLLM. Repeat the
    command to resume an interrupted matrix. Arguments after -- go to pytest. Exit codes are those
    of `run`.

    `-- pytest tests/` runs your own suite instead, once for each environment, in the working
    directory and with your configuration, and shows what became of each test. With --base, only
    what did not fail before counts for the exit code.
    """
    if suite := suite_command(command.pytest_args):
        unfit: dict[str, object] = {"--only": only, "--on": on, "--shard": shard, "--fresh": fresh}
        unfit |= {"--format": format != "text", "ids of cases": case_ids}
        if unused := [option for option, value in unfit.items() if value]:
            raise UsageError(f"{', '.join(unused)}: not with a suite of your own; leave that out")
        places = _SuitePlaces(environments or (), releases, disk, device, jobs or 1, dry_run, base)
        return _own_suite(command, suite, places, OutputFiles.of(out).check_results())
    if base is not None:
        raise UsageError("--base compares a suite of your own: give `-- pytest ...` with it")
    options = command.run_options(device)
    cases = command.select(case_ids)
    limit = _disk_limit(disk, releases, on)
    names = named_environments(cases, environments or [], releases)
    batches: Sequence[Batch] = remaining(cases, plan_batches(cases, names), only or ())
    if format != "text":
        if not dry_run:
            raise UsageError(
                f"--format {format} prints jobs and runs nothing: give --dry-run with it"
            )
        here = {"--out": out, "--jobs": jobs, "--on": on, "--fresh": fresh}
        if unused := [option for option, value in here.items() if value]:
            raise UsageError(
                f"--format {format} only prints jobs and does not pass on {', '.join(unused)}: "
                "leave that out here"
            )
        check_environments([b for b in batches if not names_interpreter(b.environment)])
        # Options as they were given, for the jobs of the CI system.
        given = [("--releases", releases), ("--disk", disk), ("--device", device)]
        given += [("--env", name) for name in environments or ()]
        given += [("--only", part.value) for part in only or ()]
        options_given = [word for name, value in given if value for word in (name, value)]
        words = shlex.split(command.command("matrix", *(case_ids or ()), *options_given))
        count = shard_count(shard, len(batches))
        print_json(ci_job_matrix(CiSystem(format), batches, count, words, command.pytest_args))
        return OK
    files = OutputFiles.of(out)
    batches = batches_of_shard(batches, shard, files)
    progress = CaseLines(say, logs=False, bar=not command.verbose)
    executor: Executor
    if dry_run:
        return _print_plan(batches, limit)
    with contextlib.ExitStack() as stack:
        if limit is not None:
            executor, batches = stack.enter_context(
                _swept(command, batches, limit, jobs or machine_room())
            )
        else:
            executor = make_executor(on, jobs, say, progress)
            if on is None:
                command.prepare(batches, options)
        # By directories of cases, so that a run is resumed even if cases were added.
        folders = sorted({str(case.directory.parent) for case in cases})
        ran = [f"--releases {releases}"] if releases else [batch.environment for batch in batches]
        key = [*(case_ids or folders), *ran, *(only or ()), str(device), str(shard)]
        journal = Journal(writable_root() / "matrix", [*key, *command.pytest_args])
        if fresh:
            journal.close()
        outcome = run_batches(RunRequest(batches, executor, options, progress, journal))
        try:
            files.save(outcome.run, command.cases, say)
        finally:  # also on a full disk
            print_to_console(outcome.run)
    return _ended(outcome, journal)


@dataclass(frozen=True)
class _SuitePlaces:
    """Where a user's own suite runs. ``jobs``: one environment at a time unless the user says
    otherwise, because the suite may write to its working directory."""

    environments: Sequence[str]
    releases: str | None
    disk: str | None
    device: Device
    jobs: int
    dry_run: bool
    base: str | None


def _own_suite(
    command: Invocation, suite: tuple[str, ...], places: _SuitePlaces, files: OutputFiles
) -> int:
    """Run a user's own suite in each environment, and show test by release."""
    if not places.environments and places.releases is None:
        raise UsageError("-- pytest: say where your suite is to run, with --releases or --env")
    last = writable_root() / "suites" / f"{digest(str(Path.cwd()), *suite)}.json"
    base = None if places.base is None else _base(places.base, last)
    limit = _disk_limit(places.disk, places.releases, None)
    names = named_environments((), places.environments, places.releases)
    batches: Sequence[Batch] = plan_batches((), names)
    if places.dry_run:
        return _print_plan(batches, limit)
    options = RunOptions(places.device, suite=suite, verbose=command.verbose)
    progress = OutputInOrder(say) if options.verbose else Progress()
    with contextlib.ExitStack() as stack:
        if limit is not None:
            executor, batches = stack.enter_context(_swept(command, batches, limit, places.jobs))
        else:
            executor = make_executor(None, places.jobs, say)
            command.prepare(batches, options)
        outcome = run_suite(batches, executor, options, progress, lambda run: say(_summary(run)))
    runs = sorted(outcome.runs, key=lambda run: names.index(run.environment))  # oldest first
    outcome = replace(outcome, runs=tuple(runs))
    # The working directory is that of a project, whose cases are not what is documented of vLLM.
    known = replace(command, answers=True).cases_if_any()
    results = replace(with_known_failures(outcome, suite, known), base=base)
    try:
        save_suite(results, files, say)
        incomplete = outcome.interrupted or any(run.problems for run in outcome.runs)
        if not (incomplete or results.broken):  # else the next run would find it normal
            last.parent.mkdir(exist_ok=True)
            write_atomically(last, rendered_suite("json", results))
    finally:  # also on a full disk
        print_report("text", results.report(everything=False), None)
    return results.exit_code


def _base(base: str, last: Path) -> SuiteRecord | None:
    """Return the results to compare with; None if there is no last run of this suite."""
    if base != LAST_RUN:
        return SuiteRecord.read(Path(base))
    if last.exists():
        return SuiteRecord.read(last)
    say("--base last: this is the first run of this suite in this folder; all failures count")
    return None


def _summary(run: EnvironmentRun) -> str:
    counts = ", ".join(f"{run.count(o)} {o.value}" for o in TestOutcome if run.count(o))
    seconds = sum(test.seconds for test in run.tests.values())
    return f"{run.environment}: {counts or 'no tests'}, {seconds:.0f} s"


@contextlib.contextmanager
def _swept(
    command: Invocation, batches: Sequence[Batch], limit: int, jobs: int
) -> Iterator[tuple[Executor, Sequence[Batch]]]:
    """Yield the executor of a sweep within ``limit`` bytes, and the batches in its order."""
    budget, batches = _sweep(batches, limit, dry_run=False)
    command.confirm()
    with budget.opened():
        release = budget.release
        yield (
            ThreadsExecutor(budget.build, jobs, say, seconds=None, release=release, ahead=1),
            batches,
        )


def _print_plan(batches: Sequence[Batch], limit: int | None) -> int:
    """Print the environments in their order, with sizes for a sweep."""
    if limit is not None:
        _sweep(batches, limit, dry_run=True)
    else:
        rows = [(batch.environment, str(len(batch.cases))) for batch in batches]
        print_columns(("environment", "cases"), rows)
    return OK


def _ended(outcome: RunOutcome, journal: Journal) -> int:
    """Forget the progress of a matrix that is complete, and return the exit code."""
    if outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.lost:
        say("the same command runs the cases again that this machine could not run")
    else:
        journal.close()
    return outcome.exit_code


def _disk_limit(disk: str | None, releases: str | None, on: str | None) -> int | None:
    """Return the bytes that a sweep over releases on this machine may take; None for any other
    matrix."""
    if releases is not None and on is None:
        return disk_limit(disk)
    if disk is not None:
        raise UsageError(
            "--disk limits what --releases downloads on this machine; a cluster's nodes have limits of "
            "their own. Leave it out here"
        )
    return None


def _sweep(
    batches: Sequence[Batch], limit: int, *, dry_run: bool
) -> tuple[DiskBudget, Sequence[Batch]]:
    """Plan a sweep within ``limit`` bytes, and return its budget and the batches in its order."""
    by_name = {batch.environment: batch for batch in batches}
    planned = plan_sweep(list(by_name))
    budget = DiskBudget(limit, planned, sweep_cache(), writable_root() / uv.SWEEP_CACHE, say)
    if dry_run:
        rows = [(e.name, e.torch, f"{e.added / GIB:.1f} GiB", e.notes) for e in planned]
        print_columns(("environment", "torch", "adds", "notes"), rows)
    else:
        budget.check()
    total = sum(entry.added for entry in planned)
    say(
        f"{len(planned)} releases, about {total / GIB:.0f} GiB in all, at most {limit / GIB:.0f} GiB at a time"
    )
    return budget, [by_name[entry.name] for entry in planned]
