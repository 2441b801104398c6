"""``vllm-regress try``: which cases a patch fixes, breaks and leaves unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..bisection.patch import CaseEffect, PatchEffect
from ..bisection.trial import TrialRequest, plan_trial
from ..cases.results import RunResult
from ..runner.build import build_with_cache
from ..runner.executors.threads import ThreadsExecutor
from ..runner.journal import Journal
from ..runner.progress import CaseLines, Say
from ..runner.result_files import check_destination, save_results
from ..runner.run import RunRequest, run_batches
from ..runner.slots import machine_room
from ..util.paths import writable_root
from ..util.signals import terminate_as_interrupt
from .context import HELP, OK, UNEXPECTED, CaseIds, Jobs, Results, invocation, print_columns, print_json, say, warn

app = typer.Typer(context_settings=HELP)


@app.command("try")
def try_patch(
    context: typer.Context,
    tree: Annotated[Path, typer.Argument(metavar="PATH", help="A work tree of vLLM, with its uncommitted changes.")],
    case_ids: CaseIds = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="REV", help="What to compare with (default: where the branch left upstream's, else HEAD)."
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The environment that both are laid over (default: the release that fits best)."
        ),
    ] = None,
    jobs: Jobs = None,
    destination: Results = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the answer as JSON, and nothing else on standard output.")
    ] = False,
) -> None:
    """Run all (or named) cases once on a work tree and once on its base, on the simulated device; show which ones the patch fixes and breaks.

    Unless cases are named, those run first whose fix or text concerns the changed modules. Arguments after -- go to pytest. Exit codes: 0 the patch
    breaks nothing; 1 it breaks something; 2 usage; 3 an environment could not be built; 130 interrupted (repeat the command to resume).
    """
    show = warn if as_json else say
    shared = invocation(context)
    cases = shared.select(case_ids or [])
    check_destination(destination)
    trial = plan_trial(TrialRequest(tree, cases, not case_ids, against, env))
    base = trial.base.id[:10]
    show(
        f"{len(trial.changed)} changed files against {base} ({trial.base.subject}); "
        f"{len(trial.cases)} cases, over {trial.base_environment}"
    )
    journal = Journal(writable_root() / "try", [*trial.key, *shared.pytest_args])
    options = shared.run_options(None)
    progress = CaseLines(show, logs=False, bar=not shared.verbose)
    executor = ThreadsExecutor(progress.watching(build_with_cache(show)), jobs or machine_room(), show)
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
        print_json([{"case": e.case.id, **{name: getattr(e, name) for name in names}} for e in effects])
    else:
        _print_effects(effects, base)
    _save(outcome.run, destination, show)
    if outcome.unbuilt:
        raise typer.Exit(outcome.exit_code)
    raise typer.Exit(UNEXPECTED if any(effect.effect is PatchEffect.BREAKS for effect in effects) else OK)


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
