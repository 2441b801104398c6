"""Cases by environments: given to a carrier, kept cell by cell, so that what is finished survives an interruption."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import TextIO

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from ..cases import results
from ..cases.cells import cells
from ..cases.model import Case
from ..cases.results import RunResult
from ..errors import UsageError
from ..util.rundir import scratch
from . import runner as runs
from .carrier import Arrival, Carrier, LocalThreads
from .cell import State
from .in_order import InOrder
from .journal import Journal
from .shards import batches, with_workers


def named_environments(cases: Sequence[Case], env: Sequence[str], versions: str | None) -> list[str]:
    """The environments asked for, oldest vLLM first; those of the cases' evidence when none is asked for."""
    from ..environments.names import resolve
    from ..environments.recipes import find_file, load

    if env and versions:
        raise UsageError("--env and --versions contradict each other: give one of them")
    if versions is None:
        return list(env) or sorted(
            {name for case in cases for name in (*case.evidence.affected, *case.evidence.fixed)},
            key=lambda name: _age(resolve(name).target),
        )
    try:
        wanted = SpecifierSet(versions)
    except InvalidSpecifier:
        raise UsageError(
            f"--versions {versions!r}: not a PEP 440 specifier; allowed is for example '>=0.8,<0.12'"
        ) from None
    listed = [
        recipe for recipe in load(find_file()).recipes.values() if wanted.contains(recipe.target[1], prereleases=True)
    ]
    if not listed:
        raise UsageError(
            f"--versions {versions!r}: no environment of environments.toml has such a vLLM; `vllm-regress env list` shows them"
        )
    return [recipe.name for recipe in sorted(listed, key=lambda recipe: _age(recipe.target))]


def side_by_side(
    jobs: Sequence[runs.Job],
    at_once: int,
    build: Callable[[str], None],
    options: runs.Options,
    say: runs.Say,
    spare: Callable[[int], bool] = lambda running: False,
) -> runs.Outcome:
    """Jobs in parallel on this machine, ``at_once`` and ``spare`` as in ``LocalThreads``; the cases of a long one are divided.

    One at a time: each on our own terminal.
    """
    if at_once > 1:
        jobs = with_workers([part for _, part in batches(jobs, at_once)])
    if at_once == 1 or len(jobs) == 1:
        return runs.Runner(build, options, say).run(jobs)
    return in_order(jobs, LocalThreads(build, at_once, say, spare=spare), options, say)


def in_order(
    jobs: Sequence[runs.Job], carrier: Carrier, options: runs.Options, say: runs.Say, out: TextIO | None = None
) -> runs.Outcome:
    """Jobs wherever ``carrier`` runs them, their output (to ``out``, default our own) one after the other in their order."""
    with scratch() as folder:
        journal = Journal(folder, ())
        show = InOrder([(job, journal.log(job)) for job in jobs], say, out)
        colour = ("--color=yes",) if sys.stdout.isatty() and "NO_COLOR" not in os.environ else ()
        options = dataclasses.replace(options, pytest_args=(*colour, *options.pytest_args))
        return Matrix(carrier, options, journal, say, show=show).run(jobs)


@dataclasses.dataclass(frozen=True)
class Carried:
    """As ``runs.Runner``, wherever ``carrier`` runs the jobs; their output goes to ``out``."""

    carrier: Carrier
    options: runs.Options
    say: runs.Say
    out: TextIO | None = None

    def run(self, jobs: Sequence[runs.Job]) -> runs.Outcome:
        """As ``runs.RunsJobs``."""
        return in_order(jobs, self.carrier, self.options, self.say, self.out)


class Matrix:
    """Gives jobs to a carrier and keeps what comes of them, cell by cell.

    ``show`` is asked again and again which jobs have ended; without it a line is said for each part that comes.
    """

    def __init__(
        self,
        carrier: Carrier,
        options: runs.Options,
        journal: Journal,
        say: runs.Say,
        clock: Callable[[], float] = time.monotonic,
        show: Callable[[Collection[tuple[str, int]]], None] | None = None,
    ) -> None:
        self._carrier = carrier
        self._options = options
        self._journal = journal
        self._say = say
        self._clock = clock
        self._show = show

    def run(self, jobs: Sequence[runs.Job]) -> runs.Outcome:
        """All jobs; what an earlier run finished is taken from the journal."""
        found = {job.key: [self._journal.finished(job)] for job in jobs}  # in their order, whichever ends first
        known = sum(len(cells(each.results)) for (each,) in found.values())
        if known:
            are = "cell is" if known == 1 else "cells are"
            self._say(f"{known} {are} finished by an interrupted run of the same matrix (--fresh runs them again)")
        todo = [left for job in jobs if (left := self._journal.remaining(job)) is not None]
        unbuilt: dict[str, None] = {}
        ended: set[tuple[str, int]] = set()
        started, total = self._clock(), sum(len(job.cases) for job in todo)
        done: set[tuple[str, str]] = set()
        try:
            with contextlib.closing(self._carrier.carry(todo, self._options, self._journal)) as arrivals:
                for each in arrivals:
                    if each is not None:
                        kept = self._keep(each)
                        found[each.job.key].append(kept)
                        unbuilt |= dict.fromkeys([each.job.environment] if each.state is State.UNBUILT else [])
                        ended |= {each.job.key} if each.last else set()
                        done |= {(each.job.environment, result.case_id) for result in kept.results}
                    if self._show is not None:
                        self._show(ended)
                    elif each is not None and each.run.results:
                        self._say(_progress(each, kept, len(done), total, self._clock() - started))
        except KeyboardInterrupt:
            return runs.Outcome(results.merge(map(self._cut_short, jobs)), tuple(unbuilt), interrupted=True)
        return runs.Outcome(results.merge(chain.from_iterable(found.values())), tuple(unbuilt))

    def _keep(self, arrival: Arrival) -> RunResult:
        """What arrived, judged. What a machine or a build failed at is not finished: it is run again."""
        found = runs.judged(arrival.run, arrival.job, self._options)
        if arrival.state is State.FINISHED:
            self._journal.add(arrival.job, found)
            if arrival.last:
                self._journal.partial(arrival.job).unlink(missing_ok=True)
        return found

    def _cut_short(self, job: runs.Job) -> RunResult:
        found = self._journal.finished(job)
        if self._journal.remaining(job) is None:
            return runs.judged(found, job, self._options)
        return runs.cut_short(job, self._options, found)


def _progress(arrival: Arrival, found: RunResult, done: int, total: int, passed_s: float) -> str:
    verdicts = ", ".join(
        f"{cell.case_id} {cell.verdict.value}{'' if cell.expected else ' (not expected)'}"
        for cell in cells(found.results)
    )
    left = f"; about {_minutes(passed_s / done * (total - done))} left" if done < total else ""
    where = f" on {arrival.node['node']}" if "node" in arrival.node else ""
    return f"[{done}/{total}] {arrival.job.environment}{where}: {verdicts}{left}"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _age(target: tuple[str, str]) -> tuple[object, str]:
    from packaging.version import Version

    return Version(target[1]), target[0]
