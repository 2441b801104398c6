"""Run the cases on new releases and derive changes and edits of case files; if requested, write
them and the new verdicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from ...answers.audit import verdict_table
from ...cases.loading import load_case
from ...cases.model import Case
from ...cases.results import RunResult, merge_results
from ...runner.batch import Batch, RunOutcome
from .changes import Edit, changes_of, edits_of, missing_neighbours, with_ends
from .releases import VLLM, Listed, Look, environment_of
from .report import Report

Run = Callable[[Sequence[Batch]], RunOutcome]


def look(looks: Sequence[Look], listed: Listed, day: str, run: Run) -> Report | None:
    """Run the cases on the new releases and return the report; None if the run was interrupted.

    If an edit makes an end of a range at which the adjacent release was never run, that case is run
    there, too, so that the end is observed.
    """
    first = run([entry.batch for entry in looks])
    if first.interrupted:
        return None
    neighbours = _neighbours(_edits(looks, first.run, listed), listed)
    outcomes = [first]
    if neighbours:
        outcomes.append(run([entry.batch for entry in neighbours]))
        if outcomes[-1].interrupted:
            return None
    merged = merge_results(outcome.run for outcome in outcomes)
    unbuilt = tuple(dict.fromkeys(name for outcome in outcomes for name in outcome.unbuilt))
    built = [entry for entry in (*looks, *neighbours) if entry.environment not in unbuilt]
    changes = changes_of(built, merged.results)
    return Report(day, tuple(looks), merged, changes, _edits(built, merged, listed), unbuilt)


def write(report: Report) -> tuple[Report, Path, int]:
    """Apply the edits, and add the verdicts to the table beside the cases.

    Return the report, the table's file and the number of new verdicts.
    """
    for edit in report.edits:
        edit.write()
    cases = {case.id: case for entry in report.looks for case in entry.cases}
    cases |= {edit.case.id: load_case(edit.case.path) for edit in report.edits}
    folder = next(iter(cases.values())).directory.parent
    count = verdict_table.record(folder, tuple(cases.values()), report.run.results)
    return dataclasses.replace(report, written=True), folder / verdict_table.FILE, count


def _edits(looks: Sequence[Look], run: RunResult, listed: Listed) -> tuple[Edit, ...]:
    edits = edits_of(looks, run.results, listed)
    table = verdict_table.read_table([edit.case for edit in edits]).with_results(run.results)
    return tuple(with_ends(edit, table, listed) for edit in edits)


def _neighbours(edits: Sequence[Edit], listed: Listed) -> tuple[Look, ...]:
    """Return what to run on releases beside new ends that were not run yet."""
    looks: dict[tuple[object, str], list[Case]] = {}
    missing = missing_neighbours(edits)
    for release, cases in missing.items():
        for case in cases:
            looks.setdefault((release, environment_of(case, release, listed[VLLM][-1])), []).append(
                case
            )
    return tuple(
        Look(release, name, tuple(looks[release, name]))
        for release in missing
        for name in dict.fromkeys(name for other, name in looks if other == release)
    )
