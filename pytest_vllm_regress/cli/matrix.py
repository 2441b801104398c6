"""``vllm-regress matrix``: run cases in many environments in parallel, resume an interrupted run, and write the page of results."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ..reporting.table import print_to_console
from ..runner.batch import RunOptions
from ..runner.build import check_environments
from ..runner.journal import Journal
from ..runner.plan import named_environments, plan_batches
from ..runner.progress import UpdateLines
from ..runner.result_files import check_destination, save_results
from ..runner.run import RunRequest, run_batches
from ..runner.shards import MAX_SHARDS, CiSystem, ci_job_matrix, take_shard
from ..util.files import check_writable
from ..util.paths import writable_root
from ..util.signals import terminate_as_interrupt
from .context import (
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
    confirm_downloads,
    end_if_idle,
    invocation,
    make_executor,
    print_json,
    releases_of,
    say,
    warn,
)

app = typer.Typer(context_settings=HELP)


@app.command()
def matrix(
    context: typer.Context,
    case_ids: CaseIds = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME|PATH", help="An environment or interpreter; repeatable.")
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
    device: Device = None,
    jobs: Jobs = None,
    on: On = None,
    gpus: GpusEach = None,
    shard: Shard = None,
    plan: Annotated[
        CiSystem | None,
        typer.Option(help="Run nothing; print the job matrix for this CI system, one job for each shard."),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_SHARDS, help="With --plan: number of shards (default: one for each environment)."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run everything, including what an interrupted matrix had finished.")
    ] = False,
    destination: Results = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write the page of verdicts and evidence to this file."),
    ] = None,
    yes: Yes = False,
) -> None:
    """Run cases over many environments and show case by version. Arguments after -- go to pytest.

    Without --env and --versions the evidence environments of the cases are used. Repeat the command to resume an interrupted matrix.
    Exit codes are those of `run`.
    """
    check_device(device)
    shared = invocation(context)
    cases = shared.select(case_ids or [])
    all_batches = plan_batches(cases, named_environments(cases, env or [], versions))
    if plan is not None:
        options_given = [
            ("--env", env),
            ("--source", source),
            ("--versions", versions),
            ("--device", device),
            ("--wheel-index", wheel_index),
        ]
        arguments = [part for option, value in options_given for text in _listed(value) for part in (option, text)]
        command = shlex.split(shared.command("matrix", *(case_ids or []), *arguments))
        print_json(ci_job_matrix(plan, all_batches, shards or len(all_batches), command, shared.pytest_args))
        raise typer.Exit(OK)
    batches = take_shard(all_batches, shard)
    end_if_idle(batches, shard, destination)
    check_destination(destination)
    if html is not None:
        check_writable(html)
    executor = make_executor(on, gpus, jobs, say)
    if on is None:
        check_environments(batches)
        confirm_downloads([batch.environment for batch in batches], yes=yes)
    options = RunOptions(device, None, shared.pytest_args, shared.cases_dir)
    key = [
        *(case.id for case in cases),
        *(batch.environment for batch in batches),
        str(device),
        str(shard),
        *shared.pytest_args,
    ]
    journal = Journal(writable_root() / "matrix", key)
    if fresh:
        journal.close()
    with terminate_as_interrupt():
        outcome = run_batches(RunRequest(batches, executor, options, UpdateLines(say), journal))
    print_to_console(outcome.run)
    written = save_results(outcome.run, destination, writable_root() / "results", say)
    if written is not None:
        say(f"results: {written}")
    if html is not None:
        from ..reporting.html import write_page

        say(f"page: {write_page(html, outcome.run, cases_now := shared.cases(), releases_of(cases_now))}")
    if outcome.interrupted:
        warn("interrupted: repeat the command to resume")
    else:
        journal.close()
    raise typer.Exit(outcome.exit_code)


def _listed(value: list[str] | str | None) -> list[str]:
    return [value] if isinstance(value, str) else value or []
