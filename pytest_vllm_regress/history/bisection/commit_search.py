"""Search a history for the commits that fixed or broke a case, and confirm them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ...cases.model import Case
from ...environments import bases
from ...environments.git import Commit
from ...environments.sources import source_at_commit
from ...errors import UsageError
from . import algorithm
from .algorithm import State, Transition
from .commits import History
from .culprit import Culprit, result_to_json
from .search import CandidateRunner, Plan, Search
from .search_log import CandidateResult, SearchLog


@dataclasses.dataclass(frozen=True)
class CommitSearch:
    """What to search, and how.

    ``environment``: from a commit to the name of its environment.
    ``repeat``, ``trials``: as in ``Plan``.
    ``ends``: the commits given as good and as bad, if any.
    ``confirming_runs``: further runs of each commit found, and of its parent, per trial.
    """

    case: Case
    history: History
    environment: Callable[[Commit], str]
    repeat: int = 2
    trials: int = 1
    ends: tuple[str, str] | None = None
    confirming_runs: int = 2

    def plan(self) -> Plan:
        groups = self.history.groups
        return Plan(
            self.case,
            tuple(group.name for group in groups),
            tuple(self.environment(group.first) for group in groups),
            "commits that change what is imported",
            self.repeat,
            self.trials,
            probes=0,
        )


@dataclasses.dataclass(frozen=True)
class CommitReport:
    """Outcome of a commit search.

    ``results``: by the short id of the commit, in the order in which they were tried.
    """

    search: CommitSearch
    results: Mapping[str, CandidateResult] = dataclasses.field(hash=False)
    culprits: tuple[Culprit, ...]

    def only(self, *, is_fix: bool) -> CommitReport:
        """Return the report with the fixes only, or with the breaks only."""
        culprits = tuple(culprit for culprit in self.culprits if culprit.is_fix == is_fix)
        return dataclasses.replace(self, culprits=culprits)

    def lines(self) -> list[str]:
        """Return the text for people: skipped commits, the culprits, and the text for an upstream
        thread."""
        groups = self.search.history.groups
        subjects = {group.name: group.first.subject for group in groups}
        skipped = [
            f"skipped {name} {subjects[name]}: {result.why}"
            for name, result in self.results.items()
            if result.state is State.SKIPPED and name in subjects
        ]
        if not self.culprits:
            none = f"{self.search.case.id}: no such change found between {groups[0].name} and {groups[-1].name}"
            return [*skipped, none]
        environment = self.search.environment
        texts = (
            line
            for culprit in self.culprits
            for line in (*culprit.lines(), "", culprit.markdown(environment))
        )
        return [*skipped, *texts]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``, including the runs and seconds of every commit."""
        groups = self.search.history.groups
        return {
            "every": self.search.history.total,
            "candidates": len(groups),
            "ends": [groups[0].first.id, groups[-1].first.id],
            "seen": {
                name: {**result_to_json(result), "why": result.why}
                for name, result in self.results.items()
            },
            "changes": [culprit.to_json() for culprit in self.culprits],
        }


def search_commits(
    search: CommitSearch, search_log: SearchLog, runner: CandidateRunner
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
    bisection = Search(search.plan(), search_log, runner)
    bisection.run()
    _check_ends(search, bisection.known())
    changes = algorithm.changes(len(history.groups), bisection.known())
    culprits = tuple(_confirm(search, change, bisection) for change in changes)
    return CommitReport(search, dict(search_log.results), culprits)


def _check_ends(search: CommitSearch, known: Mapping[int, State]) -> None:
    if search.ends is None:
        return
    groups, repository = search.history.groups, search.history.repository
    good, bad = map(repository.commit, search.ends)
    expected = (
        (State.GOOD, State.BAD) if good.committed <= bad.committed else (State.BAD, State.GOOD)
    )
    for index, expected_state in zip((0, len(groups) - 1), expected, strict=True):
        state = known.get(index, State.SKIPPED)
        if state not in (expected_state, State.SKIPPED):
            shows = "shows the failure" if state is State.BAD else "does not show the failure"
            end = groups[index].first
            raise UsageError(
                f"{end.id[:10]} ({end.subject}) {shows}, but was given as the {expected_state.value} end: give another commit"
            )


def _confirm(search: CommitSearch, change: Transition, bisection: Search) -> Culprit:
    history = search.history
    group = history.groups[change.high]
    doubtful = tuple(
        doubtful_group.first for doubtful_group in history.groups[change.low + 1 : change.high]
    )
    # Doubtful commits may contain the change, so that the comparison is with the commit before all
    # of them.
    parent = history.groups[change.low].first if doubtful else history.parent(group)

    def run_again(commit: Commit) -> CandidateResult:
        name, runs = commit.id[:10], search.confirming_runs * search.trials
        return (
            bisection.confirm(name, search.environment(commit), runs)
            if runs
            else bisection.result(name)
        )

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
        release=bases.first_release_with(source) or "",
    )
