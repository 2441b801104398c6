"""``vllm-regress try``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..engines.settings import KEPT_REQUESTS
from ..environments.names import sources_looked_up_once
from ..fuzz.exercise.comparison import ExerciseComparison, compare_exercise
from ..history.patch import PatchEffect, PatchRunner, Recorded, compare, plan_comparison
from ..output.formats import OutputFiles
from ..runner.slots import machine_room
from ..surveys.upstream.both_sides import compare_upstream
from .context import (
    OK,
    UNEXPECTED,
    Format,
    Invocation,
    Names,
    Paths,
    make_executor,
    print_report,
    speaker,
)


def try_(
    command: Invocation,
    tree: Path,
    case_ids: Names = None,
    base: str | None = None,
    base_again: bool = False,
    base_env: str | None = None,
    upstream: bool = False,
    jobs: int | None = None,
    out: Paths = None,
    format: Format = "text",
) -> int:
    """Say which cases a patch to vLLM fixes and breaks.

    Compares a work tree with its base, on the simulated device. The verdicts on the base are kept
    for the next time. Cases that have to do with the changed files are run first. Other cases
    that fail on the base are listed and not run, because the patch cannot break them, unless you
    name them. Unless cases are named, both sides also answer the requests of the exercise, and what
    differs is shown. --upstream also runs vLLM's own tests of the changed modules on both
    sides, as far as the simulated device can. Arguments after -- go to pytest.

    Exit codes: 0 the patch breaks nothing; 1 it breaks something; 2 usage; 3 an environment could
    not be built; 130 interrupted (repeat the command to resume).
    """
    show = speaker(format)
    cases = command.select(case_ids)
    files = OutputFiles.of(out).check_results()
    with sources_looked_up_once():
        comparison = plan_comparison(tree, cases, not case_ids, base, base_env)
        show(
            f"{len(comparison.changed)} changed files against {comparison.base.id[:10]} ({comparison.base.subject}); "
            f"{len(cases)} cases, first the {comparison.close} closest; over {comparison.base_environment}"
        )
        command.confirm_downloads([comparison.base_environment], show)
        runner = PatchRunner(
            command.run_options(None).with_pytest_args(f"--vllm-leftovers={KEPT_REQUESTS}"),
            lambda progress: make_executor(None, jobs, show, progress),
            jobs or machine_room(),
            show,
        )
        exercises: list[ExerciseComparison] = []

        def exercise(recorded: Recorded) -> None:
            result = compare_exercise(comparison, show, base_again=base_again, recorded=recorded)
            exercises.append(result)
            show(exercises[0].summary())

        # Who names cases asks for these alone.
        farther = None if case_ids else exercise
        report = compare(comparison, runner, base_again=base_again, after_closest=farther)
        if report.interrupted:
            files.save(report.run, command.cases, show)
            raise KeyboardInterrupt
        tests = compare_upstream(comparison, show, base_again=base_again) if upstream else None
    if tests is not None:
        report = report.with_tests(tests.not_executed)
    shown, document = report.report(), report.to_json()
    for one in exercises:
        shown = replace(shown, sections=[*shown.sections, one.section()])
        document["exercise"] = one.to_json()
    if tests is not None:
        shown = replace(shown, sections=[*shown.sections, tests.section()])
        document["upstream"] = tests.to_json()
    print_report(format, shown, document)
    files.save(report.run, command.cases, show)
    if unbuilt := next((outcome for outcome in report.outcomes if outcome.unbuilt), None):
        return unbuilt.exit_code
    broken = [
        *report.having(PatchEffect.BREAKS),
        *(tests.broken() if tests is not None else ()),
        *(difference for one in exercises for difference in one.broken()),
    ]
    return UNEXPECTED if broken else OK
