"""Trace the commits that fixed or broke a case: search between the releases of its evidence,
compare
with case.toml, and record them in its evidence."""

from __future__ import annotations

import contextlib
import datetime
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from ..answers.audit.boundaries import Boundary, boundaries
from ..answers.audit.verdict_table import read_table
from ..cases.model import Case
from ..cases.proofs import proof
from ..cases.proofs.fingerprint import case_fingerprint, code_fingerprint
from ..cases.proofs.proof import AFFECTED, BisectedCommit, Proof
from ..environments.git import Commit, Repository
from ..environments.sources import PROJECTS, clone_of
from ..errors import UsageError
from ..util import codec
from ..util.store import Store
from ..util.versions import version_of
from .algorithm import Direction
from .bisect import commit_environments
from .candidates import CandidateResult, CandidateRunner, open_results
from .commits import (
    CommitHistory,
    CommitReport,
    CommitSearch,
    Culprit,
    around,
    commits_between,
    end_of,
    main_branch,
    search_commits,
)


@dataclass(frozen=True)
class ReleasePair:
    """Two neighbouring releases of ``package`` in the evidence, one of which shows the failure: the
    older one if ``is_fix``."""

    package: str
    older: str
    younger: str
    is_fix: bool

    def __str__(self) -> str:
        return f"{self.package} {self.older} and {self.younger}"


@dataclass(frozen=True)
class TraceOptions:
    """How to search commits.

    ``env``: the base environment; None chooses the best matching release for each commit.
    ``arguments``: for pytest.
    """

    env: str | None = None
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class CommitTrace:
    """Outcome of a search between two releases: the commits found, and what contradicts them or the
    case.

    ``results`` are kept for a second attempt; remove them when the commits are recorded.
    """

    commits: tuple[BisectedCommit, ...]
    problems: tuple[str, ...]
    results: Store[CandidateResult]


def release_pairs(case: Case, evidence: Proof) -> tuple[ReleasePair, ...]:
    """Return where the evidence changes from one release to the next, oldest first, for every
    package that can run from source.

    Raises ``UsageError`` if it never changes.
    """
    pairs: list[ReleasePair] = []
    for package in (affected.package for affected in case.affected if affected.package in PROJECTS):
        sides: dict[Version, set[bool]] = {}
        for environment in evidence.environments:
            version = version_of(environment.versions.get(package, ""))
            if version is not None:
                sides.setdefault(Version(version.public), set()).add(environment.role == AFFECTED)
        clear = [(version, side.pop()) for version, side in sorted(sides.items()) if len(side) == 1]
        pairs += [
            ReleasePair(package, str(older), str(younger), was_affected)
            for (older, was_affected), (younger, is_affected) in itertools.pairwise(clear)
            if was_affected is not is_affected
        ]
    if not pairs:
        raise UsageError(
            f"{case.path}: no release of {' or '.join(PROJECTS)} in its evidence shows the failure next to one that does not: "
            "there is nothing to search between"
        )
    return tuple(pairs)


def trace(
    case: Case, pair: ReleasePair, options: TraceOptions, runner: CandidateRunner
) -> CommitTrace:
    """Find the change that the evidence shows between two releases, and compare it with the case.

    A commit that the case names, and its parent, are tried first. All commits between the releases
    are searched if none of those is the change.
    """
    project = PROJECTS[pair.package]
    clone = clone_of(project)
    environment = commit_environments(case, pair.package, options.env)
    nothing = CommitHistory(project, clone, (), 0)
    whole = CommitSearch(case, nothing, environment)
    for commit in _documented_commits(case, pair, clone):
        history = around(project, clone, commit)
        documented = replace(whole, history=history, confirming_runs=0)
        found = _trace(documented, pair, options, runner)
        if found.commits:
            return found
        runner.say(
            f"{case.id}: {commit.id[:10]} ({commit.subject}) is not the change, or its runs gave no clear verdict"
        )
    older, younger = (end_of(project, clone, release) for release in (pair.older, pair.younger))
    ends = (younger, older) if pair.is_fix else (older, younger)
    history = commits_between(project, clone, older, younger)
    return _trace(replace(whole, history=history, ends=ends), pair, options, runner)


def _trace(
    search: CommitSearch, pair: ReleasePair, options: TraceOptions, runner: CandidateRunner
) -> CommitTrace:
    case = search.case
    # The environments are left out: the search of all commits must not repeat the runs of the
    # documented ones.
    key = [case.id, case_fingerprint(case), "documented", pair.package]
    key += [str(options.env), str(runner.trials), *options.arguments]
    with contextlib.closing(open_results(key)) as results:
        direction = Direction.FIX if pair.is_fix else Direction.BREAK
        report = search_commits(search, results, runner).only(direction)
    for culprit in report.culprits:
        if culprit.package_warning:
            runner.say(f"{case.id}: {culprit.package_warning}")
    commits = tuple(
        _bisected(case, culprit, report, options.arguments) for culprit in report.culprits
    )
    problems = [doubt for culprit in report.culprits if (doubt := _doubt(culprit))] or [
        f"{case.path}: {problem}" for commit in commits if (problem := commit.problem(case))
    ]
    if not commits:
        problems.append(
            f"no such change found between {pair}: too many commits were skipped, or the failure needs more trials"
        )
    return CommitTrace(commits, tuple(problems), results)


def _documented_commits(case: Case, pair: ReleasePair, clone: Repository) -> Iterator[Commit]:
    """Yield the commits that ``fixed-by`` or ``broken-by`` names, directly or by their pull
    request, if the clone has them."""
    repository = PROJECTS[pair.package].repository
    for url in case.fixed_by if pair.is_fix else case.broken_by:
        kind, _, name = url.removeprefix(f"{repository}/").partition("/")
        commit = clone.merge_of(name, main_branch(clone)) if kind == "pull" else None
        if kind == "commit" and clone.has(name):
            commit = clone.commit(name)
        if commit is not None and commit.parents:
            yield commit


def _doubt(culprit: Culprit) -> str:
    short_id = culprit.commit.id[:10]
    if not culprit.confirmed:
        return f"{short_id} is not confirmed: further runs gave another result; try more trials (--trials)"
    names = ", ".join(commit.id[:10] for commit in culprit.doubtful)
    return names and f"{short_id}, or one of the commits before it without a clear verdict: {names}"


def _bisected(
    case: Case, culprit: Culprit, report: CommitReport, arguments: Sequence[str]
) -> BisectedCommit:
    results = report.results.values()
    return BisectedCommit(
        kind=culprit.kind,
        package=culprit.history.project.distribution,
        commit=culprit.commit.id,
        parent=culprit.parent.id,
        subject=culprit.commit.subject,
        address=culprit.address,
        candidates=len(culprit.history.groups),
        runs=sum(max(result.runs, 1) for result in results),
        seconds=round(sum(result.seconds for result in results), 1),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        code=code_fingerprint(case.directory),
        arguments=tuple(arguments),
    )


@dataclass(frozen=True)
class TraceReport:
    """Outcome for one case: the commits recorded in ``path``, or the problems that prevent it.

    ``resumable``: the results are kept, so that the same command runs nothing twice.
    """

    case: Case
    commits: tuple[BisectedCommit, ...] = ()
    problems: tuple[str, ...] = ()
    path: Path | None = None
    resumable: bool = False

    def lines(self) -> list[str]:
        """Return the text for people."""
        if self.path is None:
            note = "; repeat the command to resume" if self.resumable else ""
            lines = (f"    {problem}" for problem in self.problems)
            return [f"NOT TRACED  {self.case.id}{note}", *lines]
        return [
            f"TRACED      {self.case.id}: {commit.kind} {commit.address}, {commit.runs} runs, {commit.seconds:.0f} s: {self.path}"
            for commit in self.commits
        ]


def trace_case(
    case: Case, options: TraceOptions, runner: CandidateRunner, command: Callable[[str], str]
) -> TraceReport:
    """Search the commits between adjacent releases if runs of them are recorded, else between those
    of the evidence.

    ``command``: from a case id to the command that validates the case.

    Raises ``KeyboardInterrupt`` when a run is interrupted; the results so far are kept.
    """
    if stale := proof.check_proof(case, command=command(case.id), commits=False):
        return TraceReport(case, problems=tuple(stale))
    evidence = proof.read_proof(case.directory / proof.FILE)
    commits: tuple[BisectedCommit, ...] = ()
    problems: tuple[str, ...] = ()
    stores = []
    ends = boundaries(case, read_table([case]))
    for pair in (narrowed(pair, ends) for pair in release_pairs(case, evidence)):
        runner.say(
            f"{case.id}: {'fixed' if pair.is_fix else 'broken'} between {pair}, according to recorded runs"
        )
        traced = trace(case, pair, options, runner)
        commits += traced.commits
        problems += traced.problems
        stores.append(traced.results)
    if problems:
        return TraceReport(case, commits, problems, resumable=True)
    path = proof.write_proof(case, codec.replace(evidence, commits=commits))
    for results in stores:
        results.remove()
    return TraceReport(case, commits, path=path)


def narrowed(pair: ReleasePair, ends: Sequence[Boundary]) -> ReleasePair:
    """Return the adjacent releases between which the change of ``pair`` was observed, or ``pair``
    itself.

    ``ends``: those of the case's ranges.
    """
    for end in ends:
        older, younger = sorted((end.inside, end.outside), key=Version)
        narrow = ReleasePair(end.package, older, younger, older == end.inside)
        within = Version(pair.older) <= Version(older) and Version(younger) <= Version(pair.younger)
        same = (narrow.package, narrow.is_fix) == (pair.package, pair.is_fix)
        if end.observed and within and same:
            return narrow
    return pair
