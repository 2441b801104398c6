"""``vllm-regress matrix``: cases by environments, in parallel, resumable, and the page that shows them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ..cases.model import select
from ..reporting.table import print_to_console
from ..runner import runner as runs
from ..runner.journal import Journal
from ..runner.matrix import Matrix, named_environments
from ..runner.shards import MOST, System, job_matrix, take
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
    carrier,
    check_device,
    confirm_downloads,
    end_if_idle,
    invocation,
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
        System | None,
        typer.Option(help="Run nothing: print the job matrix that this CI system reads, one job for each shard."),
    ] = None,
    shards: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="With --plan: how many (default: one for each environment).")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run everything, also what an interrupted matrix had finished.")
    ] = False,
    destination: Results = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the page of verdicts and evidence there.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Run cases over many environments and show case by version. Arguments after -- go to pytest.

    Without --env and --versions: over the evidence environments of the cases. An interrupted matrix goes on where it stopped when the
    same command is given again. Exit codes are those of `run`.
    """
    check_device(device)
    ours = invocation(context)
    cases = select(ours.cases(), case_ids or [])
    whole = runs.plan(cases, named_environments(cases, env or [], versions))
    if plan is not None:
        named = [
            ("--env", env),
            ("--source", source),
            ("--versions", versions),
            ("--device", device),
            ("--wheel-index", wheel_index),
        ]
        given = [part for option, value in named for each in _listed(value) for part in (option, each)]
        command = shlex.split(ours.command("matrix", *(case_ids or []), *given))
        print_json(job_matrix(plan, whole, shards or len(whole), command, ours.pytest_args))
        raise typer.Exit(OK)
    planned = take(whole, shard)
    end_if_idle(planned, shard, destination)
    chosen = carrier(on, gpus, jobs, say)
    if on is None:
        runs.check_environments(planned)
        confirm_downloads([job.environment for job in planned], yes=yes)
    options = runs.Options(device, None, ours.pytest_args, ours.cases_dir)
    key = [
        *(case.id for case in cases),
        *(job.environment for job in planned),
        str(device),
        str(shard),
        *ours.pytest_args,
    ]
    journal = Journal(writable_root() / "matrix", key)
    if fresh:
        journal.close()
    with terminate_as_interrupt():
        outcome = Matrix(chosen, options, journal, say).run(planned)
    written = runs.keep(outcome.run, destination, writable_root() / "results", say)
    print_to_console(outcome.run)
    if written is not None:
        say(f"results: {written}")
    if html is not None:
        from ..reporting.html import write_page

        say(f"page: {write_page(html, outcome.run, every := ours.cases(), releases_of(every))}")
    if outcome.interrupted:
        warn("interrupted: the same command goes on from here")
    else:
        journal.close()
    raise typer.Exit(outcome.exit_code)


def _listed(value: list[str] | str | None) -> list[str]:
    return [value] if isinstance(value, str) else value or []
