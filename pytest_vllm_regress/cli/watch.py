"""``vllm-regress watch``."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..environments.releases import known_releases, releases
from ..history.watch import (
    Run,
    SeenReleases,
    default_place,
    look,
    new_releases,
    plan,
    watched_packages,
    write_look,
)
from ..output.formats import OutputFiles
from ..runner.batch import Batch, RunOutcome
from ..runner.journal import Journal
from ..runner.progress import CaseLines, Say
from ..runner.run import RunRequest, run_batches
from ..util.files import check_writable, write_atomically
from ..util.paths import writable_root
from ..util.report import to_terminal
from .context import (
    OK,
    UNBUILT,
    UNEXPECTED,
    Device,
    Format,
    Invocation,
    Names,
    Paths,
    make_executor,
    print_json,
    say,
    speaker,
)

if TYPE_CHECKING:
    from ..history.watch import WatchReport

REPORTS = {".md": lambda report: report.markdown(), ".diff": lambda report: report.diff()}
"""What is written by the ending of a file; anything else gets the results as JSON."""


def watch(
    command: Invocation,
    case_ids: Names = None,
    state: Path | None = None,
    write: bool = False,
    fresh: bool = False,
    device: Device = None,
    jobs: int | None = None,
    out: Paths = None,
    format: Format = "text",
) -> int:
    """Run cases on new releases and correct their ranges.

    New are those of vLLM and of grammar libraries since the last look. On a new vLLM all cases run.
    On a new library those about it run, in the newest vLLM with the new library in place of its
    own, or without vLLM if the case has such evidence. Unexpected verdicts become edits of case
    files: a range is extended, ended, or gets an alternative. A second look on the same day does
    nothing, but with --fresh. Keep one --state for each choice of cases. Arguments after -- go to
    pytest.

    Exit codes: 0 no new release, or everything as expected; 1 some verdict is not as expected; 2
    usage or bad input; 3 an environment could not be built, and its release stays new; 4 internal
    error; 130 interrupted, repeat the command to resume.
    """
    cases = command.select(case_ids)
    show = speaker(format)
    place = state or default_place(command.directory(), case_ids or [])
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    with contextlib.closing(SeenReleases(place)) as seen:
        if not fresh and not seen.is_due(today, write=write):
            open_edits = ", ".join(seen.unapplied)
            left = (
                f" Edits for {open_edits} are not applied: --write does that." if open_edits else ""
            )
            show(
                f"looked already today, {seen.last_day}: nothing to do; --fresh looks again.{left}"
            )
            return OK
        reports = [path for path in out or () if path.suffix in REPORTS]
        files = OutputFiles.of(path for path in out or () if path not in reports).check_results()
        for path in (place, *reports):
            check_writable(path)
        packages = watched_packages(cases)
        listed = {package: releases(package) for package in packages}
        known = {package: known_releases(package) for package in packages}
        news = new_releases(listed, known, seen.names)
        looks = plan(news, cases, listed["vllm"][-1])
        if not looks:
            since = seen.last_day or "this package was made"
            show(f"no new release of {', '.join(packages)} since {since}")
            seen.add_look(today, news)
            return OK
        show(f"new: {', '.join(map(str, news))}")
        key = [
            *(str(place.absolute()), *(case.id for case in cases)),
            *(str(device), *command.pytest_args),
        ]
        journal = Journal(writable_root() / "watch", key)
        report = look(looks, listed, today, _runner(command, device, jobs, journal, show))
        if report is None:
            raise KeyboardInterrupt
        if write:
            report = _write(report, show)
        files.save(report.run, command.cases, show)
        for path in reports:
            write_atomically(path, REPORTS[path.suffix](report))
        unapplied = () if write else report.unexpected_releases
        # A look with a failed build is not complete, so it may be repeated on the same day.
        seen.add_look(today, report.seen_releases, unapplied, complete=not report.unbuilt)
    if not unapplied and not report.unbuilt:
        journal.close()
    _print(report, format, show)
    return UNBUILT if report.unbuilt else UNEXPECTED if report.changes else OK


def _runner(
    command: Invocation, device: str | None, jobs: int | None, journal: Journal, show: Say
) -> Run:
    def run(batches: Sequence[Batch]) -> RunOutcome:
        options = command.run_options(device)
        command.prepare(batches, options, show)
        progress = CaseLines(show, logs=False, bar=not command.verbose)
        executor = make_executor(None, jobs, show, progress)
        return run_batches(RunRequest(batches, executor, options, progress, journal))

    return run


def _write(report: WatchReport, show: Say) -> WatchReport:
    """Apply the edits and add the verdicts."""
    report, table, count = write_look(report)
    show(f"{len(report.edits)} case files were corrected, {count} verdicts are new in {table}")
    if report.edits:
        show("the proofs of these cases are out of date now: `vllm-regress validate` renews them")
    return report


def _print(report: WatchReport, format: str, show: Say) -> None:
    if format == "json":
        print_json(report.to_json())
    elif format == "markdown":
        say(report.markdown())
    else:
        say(*to_terminal(report.report()).splitlines(), *report.diff().splitlines())
    if report.edits and not report.written:
        show(
            "nothing was written: the same command with --write applies this, without running anything again"
        )
