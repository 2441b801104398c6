"""Bisect a case: over releases, then over the commits between the two releases found."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ...cases.model import Case
from ...cases.proofs.fingerprint import case_fingerprint
from ...environments.index.releases import releases
from ...environments.sources import PROJECTS, clone_of
from .algorithm import Direction, State
from .answer import Answer
from .candidates import choose_releases, commit_environments, environment_names
from .commit_search import CommitReport, CommitSearch, search_commits
from .commits import end_of, history
from .search import CandidateRunner, Plan, Search
from .search_log import SearchLog


@dataclasses.dataclass(frozen=True)
class BisectRequest:
    """What to bisect, among which candidates, and how.

    ``releases``: a PEP 440 specifier.
    ``good``, ``bad``: the ends: releases, or revisions if only commits are searched.
    ``environment``: the base environment that takes releases or commits in turn; None chooses one.
    ``branch``: where a release without a tag is looked for.
    ``state_file``: where results are kept for resuming; None: in the cache, until the bisection is
    complete.
    """

    case: Case
    package: str = "vllm"
    direction: Direction = Direction.ANY
    releases: str | None = None
    good: str | None = None
    bad: str | None = None
    search_releases: bool = True
    search_commits: bool = False
    every_parent: bool = False
    branch: str = "HEAD"
    environment: str | None = None
    device: str | None = None
    repeat: int = 2
    trials: int = 1
    pytest_args: tuple[str, ...] = ()
    state_file: Path | None = None
    restart: bool = False


@dataclasses.dataclass(frozen=True)
class BisectReport:
    """Outcome of a bisection.

    ``answer`` is None if only commits were searched; ``commits`` has one report per pair of ends.
    """

    case: Case
    package: str
    answer: Answer | None
    commits: tuple[CommitReport, ...] = ()

    @property
    def found_change(self) -> bool:
        """Whether a change of the requested direction was found."""
        if self.commits:
            return any(report.culprits for report in self.commits)
        return bool(self.answer and self.answer.changes)

    @property
    def conclusive(self) -> bool:
        """Whether any candidate gave a clear verdict."""
        results = [self.answer.results] if self.answer else []
        results += [report.results for report in self.commits]
        return any(
            result.state is not State.SKIPPED for by_name in results for result in by_name.values()
        )

    def lines(self) -> list[str]:
        """Return the text for people: the commits if commits were searched, else the releases.

        The last line is the answer.
        """
        if self.commits:
            return [line for report in self.commits for line in report.lines()]
        return self.answer.lines() if self.answer else []

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        document = (
            self.answer.to_json()
            if self.answer
            else {"case": self.case.id, "package": self.package}
        )
        return document | (
            {"commits": [report.to_json() for report in self.commits]} if self.commits else {}
        )


def run(request: BisectRequest, runner: CandidateRunner) -> BisectReport:
    """Run the bisection and return its report.

    Results are recorded after every candidate, so that an interrupted bisection resumes. Raises
    ``UsageError`` for a request without candidates or environments, and ``KeyboardInterrupt`` when
    a run is interrupted.
    """
    bisection = _Bisection(request, runner)
    report = bisection.run()
    if request.state_file is None:
        bisection.forget()
    return report


class _Bisection:
    """A bisection under way, with its log files."""

    def __init__(self, request: BisectRequest, runner: CandidateRunner) -> None:
        self._request = request
        self._runner = runner
        self._logs: list[SearchLog] = []
        case, package, base = request.case, request.package, request.environment
        self._of_commit = (
            commit_environments(case, package, base) if request.search_commits else None
        )
        release_base = None if request.search_commits and package == "vllm" else base
        self._of_release = (
            environment_names(case, package, release_base) if request.search_releases else None
        )

    def run(self) -> BisectReport:
        request = self._request
        answer = self._search_releases() if self._of_release else None
        if answer is None:
            pairs = [(str(request.good), str(request.bad))]
        else:
            names = tuple(map(str, answer.candidates))
            pairs = [(names[change.low], names[change.high]) for change in answer.changes]
        if not request.search_commits or not pairs:
            return BisectReport(request.case, request.package, answer)
        for line in answer.lines() if answer else ():
            self._runner.say(line)
        reports = tuple(self._search_commits(low, high) for low, high in pairs)
        return BisectReport(request.case, request.package, answer, reports)

    def forget(self) -> None:
        for log in self._logs:
            log.forget()

    def _search_releases(self) -> Answer:
        assert self._of_release is not None
        request = self._request
        ends = (request.good, request.bad)
        candidates = choose_releases(
            request.case, request.package, releases(request.package), request.releases, ends
        )
        names = tuple(map(str, candidates))
        plan = Plan(
            request.case,
            names,
            tuple(map(self._of_release, names)),
            repeat=request.repeat,
            trials=request.trials,
        )
        log = self._open_log("releases", plan)
        search = Search(plan, log, self._runner)
        search.run()
        return Answer.of(
            request.case, request.package, candidates, dict(log.results), request.direction
        )

    def _search_commits(self, low: str, high: str) -> CommitReport:
        assert self._of_commit is not None
        request = self._request
        project = PROJECTS[request.package]
        clone = clone_of(project)
        first, second = (end_of(project, clone, end, request.branch) for end in (low, high))
        search = CommitSearch(
            case=request.case,
            history=history(project, clone, first, second, first_parent=not request.every_parent),
            environment=self._of_commit,
            repeat=request.repeat,
            trials=request.trials,
            ends=None if request.search_releases else (first, second),
        )
        report = search_commits(search, self._open_log("commits", search.plan()), self._runner)
        if request.direction is Direction.ANY:
            return report
        return report.only(is_fix=request.direction is Direction.FIX)

    def _open_log(self, kind: str, plan: Plan) -> SearchLog:
        request = self._request
        key = [request.case.id, case_fingerprint(request.case), request.package]
        key += [
            str(request.device),
            str(request.trials),
            kind,
            *plan.environments,
            *request.pytest_args,
        ]
        if request.state_file is None:
            log = SearchLog.in_cache(key)
        else:
            log = SearchLog(
                Path(f"{request.state_file}{'.commits' if kind == 'commits' else ''}"), key
            )
        if request.restart:
            log.forget()
        self._logs.append(log)
        return log
