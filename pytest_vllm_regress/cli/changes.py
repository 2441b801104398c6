"""``vllm-regress try`` and ``watch``: what a patch to vLLM, and what new releases, change about the
cases."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..cases.results import RunResult
from ..history.patch import CaseEffect, PatchEffect, PatchRequest, plan_comparison
from ..runner.batch import Batch, RunOutcome
from ..runner.build import build_with_cache, check_environments
from ..runner.executors import ThreadsExecutor
from ..runner.journal import Journal
from ..runner.progress import CaseLines, Say
from ..runner.result_files import check_destination, save_results
from ..runner.run import RunRequest, run_batches
from ..runner.slots import machine_room
from ..util.files import check_writable, write_atomically
from ..util.paths import writable_root
from ..util.signals import terminate_as_interrupt
from .context import (
    HELP,
    INTERRUPTED,
    OK,
    UNBUILT,
    UNEXPECTED,
    AsJson,
    CaseIds,
    Device,
    Invocation,
    Jobs,
    Results,
    Yes,
    check_device,
    confirm_downloads,
    invocation,
    make_executor,
    print_columns,
    print_json,
    say,
    warn,
)

if TYPE_CHECKING:
    from ..history.watch import SeenReleases, WatchReport

WATCH_EPILOG = (
    "Exit codes: 0 no new release, or everything as expected; 1 some verdict is not as expected; 2 usage or bad input; 3 an environment could "
    "not be built, and its release stays new; 4 internal error; 130 interrupted, repeat the command to resume."
)
app = typer.Typer(context_settings=HELP)


@app.command("try")
def try_patch(
    context: typer.Context,
    tree: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A work tree of vLLM, with its uncommitted changes."),
    ],
    case_ids: CaseIds = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="REV",
            help="What to compare with (default: where the branch left upstream's, else HEAD).",
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The environment that both are laid over (default: the release that fits best).",
        ),
    ] = None,
    jobs: Jobs = None,
    destination: Results = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the answer as JSON, and nothing else on standard output."
        ),
    ] = False,
) -> None:
    """Run all (or named) cases once on a work tree and once on its base, on the simulated device;
    show which ones the patch fixes and breaks.

    Unless cases are named, those run first whose fix or text concerns the changed modules.
    Arguments after -- go to pytest. Exit codes: 0 the patch breaks nothing; 1 it breaks something;
    2 usage; 3 an environment could not be built; 130 interrupted (repeat the command to resume).
    """
    show = warn if as_json else say
    shared = invocation(context)
    cases = shared.select(case_ids or [])
    check_destination(destination)
    trial = plan_comparison(PatchRequest(tree, cases, not case_ids, against, env))
    base = trial.base.id[:10]
    show(
        f"{len(trial.changed)} changed files against {base} ({trial.base.subject}); "
        f"{len(trial.cases)} cases, over {trial.base_environment}"
    )
    journal = Journal(writable_root() / "try", [*trial.key, *shared.pytest_args])
    options = shared.run_options(None)
    progress = CaseLines(show, logs=False, bar=not shared.verbose)
    executor = ThreadsExecutor(
        progress.watching(build_with_cache(show)), jobs or machine_room(), show
    )
    with terminate_as_interrupt():
        outcome = run_batches(RunRequest(trial.batches, executor, options, progress, journal))
    if outcome.interrupted:
        _save(outcome.run, destination, show)
        warn("interrupted: repeat the command to resume")
        raise typer.Exit(outcome.exit_code)
    journal.close()
    effects = trial.effects(outcome.run.results)
    if as_json:
        names = ("effect", "before", "after", "tests", "why")
        print_json(
            [{"case": e.case.id, **{name: getattr(e, name) for name in names}} for e in effects]
        )
    else:
        _print_effects(effects, base)
    _save(outcome.run, destination, show)
    if outcome.unbuilt:
        raise typer.Exit(outcome.exit_code)
    raise typer.Exit(
        UNEXPECTED if any(effect.effect is PatchEffect.BREAKS for effect in effects) else OK
    )


def _save(run: RunResult, destination: Path | None, show: Say) -> None:
    written = save_results(run, destination, writable_root() / "results", show)
    if written is not None:
        show(f"results: {written}")


def _print_effects(effects: Sequence[CaseEffect], base: str) -> None:
    rows = [
        (effect.effect, effect.case.id, effect.before, effect.after)
        for effect in sorted(effects, key=lambda effect: [*PatchEffect].index(effect.effect))
    ]
    print_columns(("the patch", "case", f"at {base}", "with the patch"), rows)
    for effect in effects:
        if effect.effect is not PatchEffect.UNCHANGED:
            tests = ", ".join(effect.tests) or "no test gave a clear verdict"
            say(f"{effect.effect} {effect.case.id}: {tests}: {effect.why}")


@app.command(epilog=WATCH_EPILOG)
def watch(
    context: typer.Context,
    case_ids: CaseIds = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="What was seen (default: a file in the cache, for these cases). Keep one file for each choice of cases.",
        ),
    ] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write",
            help="Apply the edits to the case files, and add the verdicts to verdicts.json.",
        ),
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Look again on the day of the last look.")
    ] = False,
    device: Device = None,
    jobs: Jobs = None,
    destination: Results = None,
    diff: Annotated[
        Path | None,
        typer.Option("--diff", metavar="FILE", help="Write the edits to FILE as a unified diff."),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write Markdown to FILE, for a CI job; - prints it."),
    ] = None,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Run cases on releases of vLLM and of grammar libraries that are new since the last look, and
    say what changed.

    On a new vLLM all cases run. On a new library those about it run, in the newest vLLM with the
    new library in place of its own, or without vLLM if the case has such evidence. Unexpected
    verdicts become edits of case files: a range is extended, ended, or gets an alternative. A
    second look on the same day does nothing. Arguments after -- go to pytest.
    """
    from ..environments.index.releases import known_releases, releases
    from ..history.watch import SeenReleases, look, new_releases, plan, watched_packages

    check_device(device)
    shared = invocation(context)
    cases = shared.select(case_ids or [])
    show: Say = warn if as_json or markdown == Path("-") else say
    place = state or _default_state(shared, case_ids or [])
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    seen = context.with_resource(contextlib.closing(SeenReleases(place)))
    if not again and not seen.is_due(today, write=write):
        show(_not_due(seen))
        raise typer.Exit(OK)
    check_destination(destination)
    for path in (place, diff, markdown):
        if path is not None and path != Path("-"):
            check_writable(path)
    packages = watched_packages(cases)
    listed = {package: releases(package) for package in packages}
    known = {package: known_releases(package) for package in packages}
    news = new_releases(listed, known, seen.names)
    looks = plan(news, cases, listed["vllm"][-1])
    if not looks:
        show(
            f"no new release of {', '.join(packages)} since {seen.last_day or 'this package was made'}"
        )
        seen.add_look(today, news)
        raise typer.Exit(OK)
    journal = Journal(
        writable_root() / "watch",
        [str(place.absolute()), *(case.id for case in cases), str(device), *shared.pytest_args],
    )

    def run(batches: Sequence[Batch]) -> RunOutcome:
        options = shared.run_options(device)
        check_environments(batches, gpu=options.asks_for_gpu)
        confirm_downloads([batch.environment for batch in batches], yes=yes, show=show)
        progress = CaseLines(show, logs=False, bar=not shared.verbose)
        executor = make_executor(None, None, jobs, show, progress)
        with terminate_as_interrupt():
            return run_batches(RunRequest(batches, executor, options, progress, journal))

    show(f"new: {', '.join(map(str, news))}")
    report = look(looks, listed, today, run)
    if report is None:
        warn("interrupted: repeat the command to resume")
        raise typer.Exit(INTERRUPTED)
    report = _finish(report, show, write=write)
    save_results(report.run, destination, writable_root() / "results", show)
    if diff is not None:
        write_atomically(diff, report.diff())
    unapplied = () if write else report.unexpected_releases
    # A look with a failed build is not complete, so it may be repeated on the same day.
    seen.add_look(today, report.seen_releases, unapplied, complete=not report.unbuilt)
    if not unapplied and not report.unbuilt:
        journal.close()
    _print(report, markdown, as_json=as_json, show=show)
    raise typer.Exit(UNBUILT if report.unbuilt else UNEXPECTED if report.changes else OK)


def _finish(report: WatchReport, show: Say, *, write: bool) -> WatchReport:
    """Write edits and verdicts if that was asked for; otherwise say how."""
    from ..history.watch import write_look

    if not write:
        return report
    report, table, count = write_look(report)
    show(f"{len(report.edits)} case files were corrected, {count} verdicts are new in {table}")
    if report.edits:
        show(
            "the proofs of these cases are out of date now: `vllm-regress validate --stale` renews them"
        )
    return report


def _print(report: WatchReport, markdown: Path | None, *, as_json: bool, show: Say) -> None:
    if markdown is not None and markdown != Path("-"):
        write_atomically(markdown, report.markdown())
    if as_json:
        print_json(report.to_json())
    elif markdown == Path("-"):
        say(report.markdown())
    else:
        for line in (*report.lines(), *report.diff().splitlines()):
            say(line)
    if report.edits and not report.written:
        show(
            "nothing was written: the same command with --write applies this, without running anything again"
        )


def _not_due(seen: SeenReleases) -> str:
    left = (
        f" Edits for {', '.join(seen.unapplied)} are not applied: --write does that."
        if seen.unapplied
        else ""
    )
    return f"looked already today, {seen.last_day}: nothing to do; --again looks again.{left}"


def _default_state(shared: Invocation, case_ids: Sequence[str]) -> Path:
    """Return the state's file in the cache for this choice of cases."""
    key = repr((str(shared.directory().absolute()), sorted(set(case_ids))))
    return writable_root() / "watch" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsonl"
