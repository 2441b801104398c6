"""Search the commits between two ends for those that fixed or broke a case, and confirm them.

Commits that change nothing that is imported join the one before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from packaging.version import Version

from ..answers.audit.boundaries import boundaries
from ..answers.audit.verdict_table import read_table
from ..answers.fixes.index import FixIndex
from ..cases.model import Case
from ..cases.proofs.proof import names_commit
from ..environments import bases
from ..environments.git import Commit, Repository
from ..environments.sources import Source, SourceProject, source_at_commit
from ..errors import UsageError
from ..util.store import Store
from ..util.text import markdown_block, markdown_inline
from ..util.versions import version_of
from . import algorithm
from .algorithm import CandidateState, Direction, Transition
from .candidates import BisectPlan, CandidateResult, CandidateRunner, CandidateSearch


@dataclass(frozen=True)
class CommitGroup:
    """Commits that behave alike:

    ``others`` follow ``first`` and change nothing that is imported.
    """

    first: Commit
    others: tuple[Commit, ...] = ()

    @property
    def name(self) -> str:
        return self.first.id[:10]


@dataclass(frozen=True)
class CommitHistory:
    """The commits of a search, oldest first; the first group starts at the older end.

    ``total``: number of commits in all groups.
    """

    project: SourceProject
    repository: Repository
    groups: tuple[CommitGroup, ...]
    total: int

    def parent(self, group: CommitGroup) -> Commit:
        """Return the commit right before ``group``."""
        before = self.groups[self.groups.index(group) - 1]
        return before.others[-1] if before.others else before.first


def commits_between(
    project: SourceProject,
    repository: Repository,
    first: str,
    second: str,
    *,
    first_parent: bool = True,
) -> CommitHistory:
    """Return the commits between two revisions, whichever is older.

    If neither revision is an ancestor of the other, start at their merge base: a release is often
    tagged on a branch of its own. Raises ``UsageError`` for a shallow clone, for two names of one
    commit, and for revisions without a common history.
    """
    repository.need_history()
    low, high = repository.commit(first), repository.commit(second)
    if repository.is_ancestor(high.id, low.id):
        low, high = high, low
    if not repository.is_ancestor(low.id, high.id):
        low, high = sorted((low, high), key=lambda commit: commit.committed)
        base = repository.merge_base(low.id, high.id)
        if base is None:
            raise UsageError(f"{repository.place}: {first} and {second} have no history in common")
        low = repository.commit(base)
    between = repository.between(low.id, high.id, first_parent=first_parent)
    if not between:
        raise UsageError(
            f"{first} and {second} are the same commit, {low.id[:10]}: a bisection needs two"
        )
    groups = [CommitGroup(low)]
    for commit in between:
        if _changes_what_is_imported(project, commit):
            groups.append(CommitGroup(commit))
        else:
            groups[-1] = CommitGroup(groups[-1].first, (*groups[-1].others, commit))
    return CommitHistory(project, repository, tuple(groups), len(between) + 1)


def around(project: SourceProject, repository: Repository, commit: Commit) -> CommitHistory:
    """Return the history of two commits: the first parent of ``commit``, and ``commit``."""
    parent = CommitGroup(repository.commit(commit.parents[0]))
    return CommitHistory(project, repository, (parent, CommitGroup(commit)), 2)


UPSTREAM = ("upstream/main", "origin/main", "origin/HEAD", "main", "origin/master", "master")


def main_branch(repository: Repository) -> str:
    """Return upstream's branch as the clone knows it; HEAD if it does not."""
    return next(filter(repository.has, UPSTREAM), "HEAD")


def end_of(project: SourceProject, repository: Repository, text: str) -> str:
    """Return the id of the commit that ``text`` names: a revision, or a release.

    A release is its tag, else the last commit on the main branch before the day of its upload.
    """
    # Without a dot it may be a commit id of digits only.
    version = version_of(text) if "." in text else None
    if version is None or repository.has(text):
        return repository.commit(text).id
    branch = main_branch(repository)
    commit = bases.release_commit(project, repository, str(version), branch)
    if commit is None:
        raise UsageError(
            f"{repository.place} has no tag for {project.distribution} {version}, and no commit on {branch} before its release day: "
            "give a revision"
        )
    return commit


def _changes_what_is_imported(project: SourceProject, commit: Commit) -> bool:
    """Return whether the commit touches the package or its requirement files.

    For a merge, the files that it brought in count.
    """
    return any(
        path.startswith(f"{project.folder}/") or path in project.requirement_files
        for path in commit.touched
    )


@dataclass(frozen=True)
class FirstRelease:
    """The first release with a commit, empty if it is in none or nothing that was observed tells,
    and how that is known."""

    version: str = ""
    known_from: str = "unknown"

    def __str__(self) -> str:
        return f"{self.version} ({self.known_from})" if self.version else self.known_from


def first_release(case: Case, source: Source, *, is_fix: bool) -> FirstRelease:
    """Return the first release with the commit that fixed (or introduced) the failure of a case:
    by the clone's tags, else the sources of wheels, else the recorded verdicts of the case."""
    if version := bases.first_release_with(source):
        return FirstRelease(version, "a tag of the clone")
    package, commit = source.project.distribution, source.commit
    if package == "vllm":
        index = FixIndex.load()
        for fix in index.fixes:
            if str(fix.number) == commit.pull_request and commit.id.startswith(fix.commit):
                if version := index.first_release(fix):
                    return FirstRelease(version, "the sources of its wheel")
                return FirstRelease("", f"none up to {index.releases[-1]}")
    observed = {
        max((end.inside, end.outside), key=Version)
        for end in boundaries(case, read_table([case]))
        if end.package == package
        and end.observed
        and (Version(end.inside) < Version(end.outside)) is is_fix
    }
    if len(observed) == 1:
        return FirstRelease(observed.pop(), "recorded verdicts of the case")
    return FirstRelease()


@dataclass(frozen=True)
class Culprit:
    """The commit that fixed (``is_fix``) or introduced the failure.

    ``parent``: the last commit before it with a clear state.
    ``doubtful``: the commits between the two, which have no clear state.
    ``result``, ``parent_result``: of the confirming runs.
    ``release``: the first release that contains the commit, and how that is known.
    """

    case: Case
    history: CommitHistory
    commit: Commit
    parent: Commit
    is_fix: bool
    doubtful: tuple[Commit, ...]
    result: CandidateResult
    parent_result: CandidateResult
    release: FirstRelease

    @property
    def confirmed(self) -> bool:
        """Whether the confirming runs agree with the search."""
        states = [CandidateState.BAD, CandidateState.GOOD]
        found = [self.parent_result.state, self.result.state]
        return found == (states if self.is_fix else states[::-1])

    @property
    def pull_request(self) -> str:
        """The URL of the pull request in the commit's subject; empty if there is none."""
        number = self.commit.pull_request
        return f"{self.history.project.repository}/pull/{number}" if number else ""

    @property
    def address(self) -> str:
        """The URL to name in the case file: that of the pull request, else that of the commit."""
        return self.pull_request or self._url(self.commit)

    @property
    def documented(self) -> bool | None:
        """Whether ``fixed-by`` (``broken-by``) of the case names this commit; None if the field is
        empty."""
        return names_commit(self._named, self.address, self.commit.id) if self._named else None

    @functools.cached_property
    def changed_requirements(self) -> tuple[str, ...]:
        """The requirement files that differ between the commit and its parent.

        Each ran with the packages that its own files ask for.
        """
        read, files = self.history.repository.read, self.history.project.requirement_files
        return tuple(
            path for path in files if read(self.commit.id, path) != read(self.parent.id, path)
        )

    @property
    def package_warning(self) -> str:
        """That a package may be the cause, and how to find out; empty if the requirement files are
        the same."""
        if not self.changed_requirements:
            return ""
        return (
            f"a package may be the cause, and not {self.commit.id[:10]}: {' and '.join(self.changed_requirements)} changed, and each commit ran "
            "with the packages that its own files ask for. To find out, run one release with both versions of the package: "
            f"vllm-regress run {self.case.id} --env NAME+PACKAGE==VERSION"
        )

    @property
    def kind(self) -> Literal["fix", "break"]:
        return "fix" if self.is_fix else "break"

    @property
    def verb(self) -> str:
        return "fixed" if self.is_fix else "broken"

    @property
    def _named(self) -> tuple[str, ...]:
        return self.case.fixed_by if self.is_fix else self.case.broken_by

    def _url(self, commit: Commit) -> str:
        return f"{self.history.project.repository}/commit/{commit.id}"

    def lines(self) -> list[str]:
        """Return the text for people; the last line is the answer."""
        commit, parent = self.commit, self.parent
        lines = [
            f"run again: {commit.id[:10]} {self.result.in_words}, "
            f"its parent {parent.id[:10]} {self.parent_result.in_words}"
        ]
        lines += [f"in doubt: {suspect.id[:10]} {suspect.subject}" for suspect in self.doubtful]
        if not self.confirmed:
            lines.append(
                "not confirmed: further runs gave another result; try more trials (--trials)"
            )
        if self.package_warning:
            lines.append(self.package_warning)
        if self.documented is False:
            field = "fixed-by" if self.is_fix else "broken-by"
            lines.append(
                f"{self.case.path}: {field} names {', '.join(self._named)}, and not this commit or its pull request"
            )
        parts = (
            f"{self.case.id}: {self.verb} by {commit.id[:10]} ({commit.authored.date()}) {commit.subject}",
            self.pull_request,
            f"first release: {self.release}",
        )
        return [*lines, "; ".join(filter(None, parts))]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        return {
            "kind": self.kind,
            "commit": self.commit.id,
            "parent": self.parent.id,
            "subject": self.commit.subject,
            "pull_request": self.pull_request,
            "authored": self.commit.authored.isoformat(),
            "first_release": self.release.version,
            "first_release_known_from": self.release.known_from,
            "confirmed": self.confirmed,
            "documented": self.documented,
            "again": {"commit": self.result, "parent": self.parent_result},
            "changed_requirements": self.changed_requirements,
            "in_doubt": [{"commit": doubt.id, "subject": doubt.subject} for doubt in self.doubtful],
        }

    def markdown(self, environment: Callable[[Commit], str]) -> str:
        """Return a text for an upstream thread, with the commands to reproduce it in
        ``environment(commit)``."""
        commit = self.commit
        pull_request = f" (pull request {self.pull_request})" if self.pull_request else ""
        release = ""
        if self.release.version:
            release = (
                f"\nThe first release that contains it: {markdown_inline(str(self.release))}.\n"
            )
        commands = "\n".join(
            f"vllm-regress run {self.case.id} --env {_quoted(environment(revision))} "
            f"--source {self.history.project.distribution}=CLONE"
            for revision in (self.parent, commit)
        )
        doubtful = ""
        if self.doubtful:
            doubtful = (
                "\nCommits without a clear verdict between it and the last commit with one:\n\n"
            )
        for doubt in self.doubtful:
            doubtful += f"- {self._link(doubt)} {markdown_inline(doubt.subject)}\n"
        return (
            f"**{markdown_inline(self.case.title)}** is {self.verb} by {self._link(commit)}{pull_request}: {markdown_inline(commit.subject)} "
            f"({commit.authored.date()}).\n{release}{doubtful}\n"
            f"Case `{self.case.id}`, on the simulated device (the commit's Python over the compiled parts of a release's wheel); "
            f"{self._link(commit)} {markdown_inline(self.result.in_words)}, "
            f"its parent {self._link(self.parent)} {markdown_inline(self.parent_result.in_words)}.\n\n"
            f"{markdown_block(commands, 'sh')}\n"
        )

    def _link(self, commit: Commit) -> str:
        return f"[{commit.id[:10]}]({self._url(commit)})"


@dataclass(frozen=True)
class CommitSearch:
    """What to search, and how.

    ``environment``: from a commit to the name of its environment.
    ``ends``: the commits given as good and as bad, if any.
    ``confirming_runs``: further runs of each commit found, and of its parent, per trial.
    """

    case: Case
    history: CommitHistory
    environment: Callable[[Commit], str]
    ends: tuple[str, str] | None = None
    confirming_runs: int = 2

    def plan(self) -> BisectPlan:
        groups = self.history.groups
        return BisectPlan(
            self.case,
            tuple(group.name for group in groups),
            tuple(self.environment(group.first) for group in groups),
            "commits that change what is imported",
            probes=0,
        )


@dataclass(frozen=True)
class CommitReport:
    """Outcome of a commit search.

    ``results``: by the short id of the commit, in the order in which they were tried.
    """

    search: CommitSearch
    results: Mapping[str, CandidateResult] = field(hash=False)
    culprits: tuple[Culprit, ...]

    def only(self, direction: Direction) -> CommitReport:
        """Return the report with the fixes only, or with the breaks only."""
        culprits = [culprit for culprit in self.culprits if direction.includes(culprit.is_fix)]
        return replace(self, culprits=tuple(culprits))

    def lines(self) -> list[str]:
        """Return the text for people: skipped commits, the culprits, and the text for an upstream
        thread."""
        groups = self.search.history.groups
        subjects = {group.name: group.first.subject for group in groups}
        skipped = [
            f"skipped {name} {subjects[name]}: {result.why}"
            for name, result in self.results.items()
            if result.state is CandidateState.SKIPPED and name in subjects
        ]
        if not self.culprits:
            none = f"{self.search.case.id}: no such change found between {groups[0].name} and {groups[-1].name}"
            return [*skipped, none]
        for culprit in self.culprits:
            skipped += [*culprit.lines(), "", culprit.markdown(self.search.environment)]
        return skipped

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``, including the runs and seconds of every commit."""
        groups = self.search.history.groups
        return {
            "every": self.search.history.total,
            "candidates": len(groups),
            "ends": [groups[0].first.id, groups[-1].first.id],
            "seen": self.results,
            "changes": [culprit.to_json() for culprit in self.culprits],
        }


def search_commits(
    search: CommitSearch, results: Store[CandidateResult], runner: CandidateRunner
) -> CommitReport:
    """Search the history, then run each commit found and its parent again to confirm it.

    No commit is found if both ends have the same state. Raises ``UsageError`` if an end has another
    state than the one it was given for.
    """
    history = search.history
    not_run = history.total - len(history.groups)
    runner.say(
        f"{history.total} commits; {not_run} of them change nothing that is imported and are not run"
    )
    bisection = CandidateSearch(search.plan(), results, runner)
    bisection.run()
    _check_ends(search, bisection.known())
    changes = algorithm.changes(len(history.groups), bisection.known())
    culprits = tuple(_confirm(search, change, bisection) for change in changes)
    return CommitReport(search, dict(results.entries), culprits)


def _check_ends(search: CommitSearch, known: Mapping[int, CandidateState]) -> None:
    if search.ends is None:
        return
    groups = search.history.groups
    good, bad = map(search.history.repository.commit, search.ends)
    ends = [CandidateState.GOOD, CandidateState.BAD]
    if good.committed > bad.committed:
        ends.reverse()
    for index, given in zip((0, len(groups) - 1), ends, strict=True):
        state = known.get(index)
        if state not in (given, CandidateState.SKIPPED, None):
            shows = "shows" if state is CandidateState.BAD else "does not show"
            end = groups[index].first
            raise UsageError(
                f"{end.id[:10]} ({end.subject}) {shows} the failure, but was given as the "
                f"{given.value} end: give another commit"
            )


def _confirm(search: CommitSearch, change: Transition, bisection: CandidateSearch) -> Culprit:
    history = search.history
    group = history.groups[change.high]
    doubtful = tuple(other.first for other in history.groups[change.low + 1 : change.high])
    # Doubtful commits may contain the change, so that the comparison is with the commit before all
    # of them.
    parent = history.groups[change.low].first if doubtful else history.parent(group)

    def run_again(commit: Commit) -> CandidateResult:
        runs = search.confirming_runs * bisection.runner.trials
        return bisection.confirm(commit.id[:10], search.environment(commit), runs)

    source = source_at_commit(history.project, history.repository, group.first)
    return Culprit(
        case=search.case,
        history=history,
        commit=group.first,
        parent=parent,
        is_fix=change.is_fix,
        doubtful=doubtful,
        result=run_again(group.first),
        parent_result=run_again(parent),
        release=first_release(search.case, source, is_fix=change.is_fix),
    )


def _quoted(text: str) -> str:
    """Return ``text`` as one word of a shell, always in quotes."""
    return "'" + text.replace("'", "'\"'\"'") + "'"
