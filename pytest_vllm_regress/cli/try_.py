"""``vllm-regress try``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..history.patch import CaseEffect, PatchEffect, plan_comparison
from ..output.formats import OutputFiles
from ..runner.journal import Journal
from ..runner.progress import CaseLines
from ..runner.run import RunRequest, run_batches
from ..util.paths import writable_root
from .context import (
    OK,
    UNEXPECTED,
    Invocation,
    Names,
    Paths,
    TextOrJson,
    make_executor,
    print_columns,
    print_json,
    say,
    speaker,
)


def try_(
    command: Invocation,
    tree: Path,
    case_ids: Names = None,
    base: str | None = None,
    base_env: str | None = None,
    jobs: int | None = None,
    out: Paths = None,
    format: TextOrJson = "text",
) -> int:
    """Say which cases a patch to vLLM fixes and breaks.

    Runs all (or named) cases once on a work tree and once on its base, on the simulated device.
    Unless cases are named, those run first whose fix or text concerns the changed modules.
    Arguments after -- go to pytest. Exit codes: 0 the patch breaks nothing; 1 it breaks something;
    2 usage; 3 an environment could not be built; 130 interrupted (repeat the command to resume).
    """
    show = speaker(format)
    cases = command.select(case_ids)
    files = OutputFiles.of(out).check_results()
    comparison = plan_comparison(tree, cases, not case_ids, base, base_env)
    before = comparison.base.id[:10]
    show(
        f"{len(comparison.changed)} changed files against {before} ({comparison.base.subject}); "
        f"{len(comparison.cases)} cases, over {comparison.base_environment}"
    )
    journal = Journal(writable_root() / "try", [*comparison.key, *command.pytest_args])
    options = command.run_options(None)
    progress = CaseLines(show, logs=False, bar=not command.verbose)
    executor = make_executor(None, jobs, show, progress)
    outcome = run_batches(RunRequest(comparison.batches, executor, options, progress, journal))
    if outcome.interrupted:
        files.save(outcome.run, command.cases, show)
        raise KeyboardInterrupt
    if not outcome.lost:
        journal.close()
    effects = comparison.effects(outcome.run.results)
    if format == "json":
        names = ("effect", "before", "after", "tests", "why")
        print_json(
            [{"case": e.case.id, **{name: getattr(e, name) for name in names}} for e in effects]
        )
    else:
        _print_effects(effects, before)
    files.save(outcome.run, command.cases, show)
    if outcome.unbuilt:
        return outcome.exit_code
    return UNEXPECTED if any(effect.effect is PatchEffect.BREAKS for effect in effects) else OK


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
