"""Measure releases into the committed records: ``python -m tools.record conformance|states|drift``.
``python -m tools.docs`` writes their pages.

Measured rows are kept one by one, so that an interrupted command can be repeated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from packaging.version import Version

from pytest_vllm_regress.cli.context import DISK, disk_limit, say
from pytest_vllm_regress.cli.survey import chosen_releases
from pytest_vllm_regress.runner.executors import build_with_cache
from pytest_vllm_regress.surveys import drift as drift_survey
from pytest_vllm_regress.surveys import drift_record
from pytest_vllm_regress.surveys.conformance import (
    ON_GPU,
    SuiteRun,
    asks_for_gpu,
    open_runs,
    read_known,
    run_suite,
    suite_directory,
    unexplained,
)
from pytest_vllm_regress.surveys.states.measure import TABLES, measure_environment, open_states
from pytest_vllm_regress.util.report import to_markdown
from pytest_vllm_regress.util.signals import terminate_as_interrupt
from pytest_vllm_regress.util.store import Store

from . import page as pages

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs" / "records"
T = TypeVar("T")
app = typer.Typer(add_completion=False)
Names = Annotated[list[str] | None, typer.Option("--env", metavar="NAME")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Measure what the record has, too.")]


@app.command()
def conformance(
    environments: Names = None,
    fresh: Fresh = False,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="For pytest: -k EXPRESSION, --vllm-gpu.")
    ] = None,
    merge: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.jsonl", help="A record of another machine, which takes precedence."
        ),
    ] = None,
) -> None:
    """Run the conformance suite. Selected checks replace only their own cells."""
    suite, selection = suite_directory(), arguments or []
    known = read_known(suite / "known.toml")
    partial = any(argument not in ON_GPU for argument in selection)
    with _locked(open_runs(RECORDS / "conformance.jsonl")) as runs:
        for file in merge or ():
            for run in open_runs(file).entries.values():
                add_run(runs, dataclasses.replace(run, whole=False))
        for name in environments or ():
            recorded = [
                ran
                for ran in runs.entries.values()
                if ran.environment == name and (ran.device == "gpu") is asks_for_gpu(selection)
            ]
            if recorded and recorded[0].whole and not (fresh or partial):
                say(f"{name}: in the record since {recorded[0].at}; --fresh runs it again")
                continue
            build_with_cache(say)(name)
            add_run(runs, dataclasses.replace(run_suite(name, suite, selection), whole=not partial))
        runs.rewrite({name: runs[name] for name in sorted(runs)})
    for ran, cell in unexplained(runs.entries.values(), known):
        say(f"not known: {ran.name} {cell.generation} {cell.section}: {cell.check}: {cell.reason}")


def add_run(runs: Store[SuiteRun], run: SuiteRun) -> None:
    """Add a run to the record: a whole one replaces an earlier one, the cells of a partial one
    replace theirs, unless other versions are installed now."""
    before = runs.entries.get(run.name)
    if before is not None and not run.whole and before.versions == run.versions:
        cells = {(cell.section, cell.check, cell.generation): cell for cell in before.cells}
        cells |= {(cell.section, cell.check, cell.generation): cell for cell in run.cells}
        gpu = {**before.gpu, **run.gpu}
        run = dataclasses.replace(run, gpu=gpu, whole=before.whole).with_cells(cells.values())
    runs.add(run.name, run)


@app.command()
def states(
    environments: Names = None,
    only: Annotated[list[str] | None, typer.Option(metavar="|".join(TABLES))] = None,
    fresh: Fresh = False,
) -> None:
    """Measure health addresses, shutdown and growth of memory."""
    tables = only or list(TABLES)
    with _locked(open_states(RECORDS / "states.jsonl")) as releases:
        for name in environments or ():
            known = releases.entries.get(name)
            if known is not None and fresh:
                empty: dict[str, Any] = {table: {} for table in tables}
                known = dataclasses.replace(known, **empty)
            for release in measure_environment(name, known, tables, say):
                releases.add(name, release)
        ordered = sorted(releases, key=lambda name: Version(releases[name].vllm))
        releases.rewrite({name: releases[name] for name in ordered})


@app.command()
def drift(
    releases: Annotated[list[str] | None, typer.Option(metavar="RANGE")] = None,
    python: str = "3.11",
    disk: Annotated[str, typer.Option(metavar="SIZE")] = DISK,
) -> None:
    """Try whether releases still install and start. Those that the record has of today are kept."""
    today = datetime.datetime.now(datetime.UTC).date()
    with (
        _locked(drift_record.open_drifts(RECORDS / "drift.jsonl")) as drifts,
        drift_survey.limited_downloads(disk_limit(disk)) as make_room,
    ):
        for version in chosen_releases(releases or ()):
            recorded = drifts.entries.get(version)
            if recorded is None or (recorded.day, recorded.python) != (today, python):
                make_room()
                release = drift_survey.DatedRelease(version, today, python)
                known = drift_record.known_culprits(drifts.entries.values())
                drifts.add(version, drift_survey.diagnose(release, say, known))
        drifts.rewrite({version: drifts[version] for version in sorted(drifts, key=Version)})


def drift_page(drifts: Collection[drift_record.Drift]) -> str:
    """Return the page of the record."""
    return pages.render("drift", report=to_markdown(drift_record.report(drifts)))


@contextlib.contextmanager
def _locked(store: Store[T]) -> Iterator[Store[T]]:
    with contextlib.closing(store):
        store.lock()
        yield store


if __name__ == "__main__":
    with terminate_as_interrupt():
        app()
