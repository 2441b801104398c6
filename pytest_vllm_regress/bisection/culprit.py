"""The commit that brought or mended a failure: found among a history's, run again beside its parent, told for a person, a program and a thread."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..cases.model import Case
from ..cases.proof import names_commit
from ..environments import bases
from ..environments.git import Commit
from ..environments.sources import of_commit
from ..errors import UsageError
from ..runner import runner as runs
from . import algorithm as bisection
from .algorithm import Change, State
from .commits import Group, History
from .search import Notes, Plan, ReleaseState, Search

CONFIRMING_RUNS = 2
_PULL = re.compile(r"\(#(\d+)\)\s*\Z|\AMerge pull request #(\d+)")


@dataclasses.dataclass(frozen=True)
class Hunt:
    """How commits are searched: ``environment`` names that of a commit; ``repeat`` and ``trials`` as in ``Plan``;
    ``ends``: the commits that were given as good and as bad, if they were."""

    case: Case
    history: History
    environment: Callable[[Commit], str]
    repeat: int = 2
    trials: int = 1
    ends: tuple[str, str] | None = None

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
class Culprit:
    """The commit after which the failure is there, or gone. ``parent``: the last before it that could be told; ``doubtful``: commits between.

    ``seen`` and ``seen_parent``: what further runs showed; ``release``: the first that has the commit, empty where that is not known.
    """

    case: Case
    history: History
    commit: Commit
    parent: Commit
    is_fix: bool
    doubtful: tuple[Commit, ...]
    seen: ReleaseState
    seen_parent: ReleaseState
    release: str

    @property
    def confirmed(self) -> bool:
        """Every further run showed what the search had."""
        before, after = (State.BAD, State.GOOD) if self.is_fix else (State.GOOD, State.BAD)
        return (self.seen.state, self.seen_parent.state) == (after, before)

    @property
    def pull_request(self) -> str:
        """The address of the pull request that the subject names; empty for none."""
        found = _PULL.search(self.commit.subject)
        return f"{self.history.project.repository}/pull/{found[1] or found[2]}" if found else ""

    @property
    def address(self) -> str:
        """What a case file is to name: the pull request, else the commit."""
        return self.pull_request or f"{self.history.project.repository}/commit/{self.commit.id}"

    @property
    def documented(self) -> bool | None:
        """Whether the case's ``fixed-by`` (``broken-by``) names this pull request or commit; None where it names none."""
        return names_commit(self._named, self.address, self.commit.id) if self._named else None

    @property
    def _named(self) -> tuple[str, ...]:
        return self.case.fixed_by if self.is_fix else self.case.broken_by

    @property
    def what(self) -> str:
        return "fixed" if self.is_fix else "broken"

    def lines(self) -> list[str]:
        """For a person; the last line is the answer."""
        commit = self.commit
        seen = f"run again: {commit.id[:10]} {_times(self.seen)}, its parent {self.parent.id[:10]} {_times(self.seen_parent)}"
        doubt = [f"in doubt: {each.id[:10]} {each.subject}" for each in self.doubtful]
        unsure = []
        if not self.confirmed:
            unsure.append("not confirmed: further runs showed something else; more trials may tell (--trials)")
        if self.documented is False:
            field = "fixed-by" if self.is_fix else "broken-by"
            unsure.append(
                f"{self.case.path}: {field} names {', '.join(self._named)}, and not this commit or its pull request"
            )
        first = (
            f"; first release: {self.release}" if self.release else "; in no release yet, as far as this clone knows"
        )
        parts = (
            f"{self.case.id}: {self.what} by {commit.id[:10]} ({commit.authored.date()}) {commit.subject}",
            self.pull_request,
        )
        return [seen, *doubt, *unsure, "; ".join(filter(None, parts)) + first]

    def to_json(self) -> dict[str, Any]:
        """For a program."""
        return {
            "kind": "fix" if self.is_fix else "break",
            "commit": self.commit.id,
            "parent": self.parent.id,
            "subject": self.commit.subject,
            "pull_request": self.pull_request,
            "authored": self.commit.authored.isoformat(),
            "first_release": self.release,
            "confirmed": self.confirmed,
            "documented": self.documented,
            "again": {"commit": _plain(self.seen), "parent": _plain(self.seen_parent)},
            "in_doubt": [{"commit": each.id, "subject": each.subject} for each in self.doubtful],
        }

    def markdown(self, environment: Callable[[Commit], str]) -> str:
        """A text for an upstream thread, with the commands that repeat it."""
        commit, project = self.commit, self.history.project
        address = f"{project.repository}/commit/{commit.id}"
        pull = f" (pull request {self.pull_request})" if self.pull_request else ""
        doubt = "".join(f"- {each.id[:10]} {each.subject}\n" for each in self.doubtful)
        between = (
            f"\nBetween it and the last commit with a clear verdict lie commits without one:\n\n{doubt}"
            if doubt
            else ""
        )
        release = f"\nThe first release that has it: {self.release}.\n" if self.release else ""
        commands = "".join(
            f"vllm-regress run {self.case.id} --env '{environment(each)}' --source {project.distribution}=CLONE\n"
            for each in (self.parent, commit)
        )
        return (
            f"**{self.case.title}** is {self.what} by [{commit.id[:10]}]({address}){pull}: {commit.subject} "
            f"({commit.authored.date()}).\n{release}{between}\n"
            f"Case `{self.case.id}`, on the simulated device (the commit's Python over the compiled parts of a release's wheel); "
            f"{commit.id[:10]} {_times(self.seen)}, its parent {self.parent.id[:10]} {_times(self.seen_parent)}.\n\n"
            f"```sh\n{commands}```\n"
        )


def find(
    hunt: Hunt, notes: Notes, runner: runs.RunsJobs, build: Callable[[str], None] | None, tell: runs.Say
) -> tuple[Culprit, ...]:
    """Search the history; run each commit found and its parent ``CONFIRMING_RUNS`` times more. Empty where the ends agree."""
    history = hunt.history
    grouped = history.every - len(history.groups)
    tell(f"{history.every} commits; {grouped} of them change nothing that is imported and are not run")
    search = Search(hunt.plan(), notes, runner, build, tell)
    search.run()
    _check_ends(hunt, search.known())
    found = []
    for change in bisection.changes(len(history.groups), search.known()):
        group = history.groups[change.high]
        unclear = (
            change.high - change.low > 1
        )  # what lies between is unclear: the one before all of it is what it is compared with
        parent = history.groups[change.low].first if unclear else history.parent(group)
        again = CONFIRMING_RUNS * hunt.trials
        seen = search.again(group.first.id[:10], hunt.environment(group.first), again)
        seen_parent = search.again(parent.id[:10], hunt.environment(parent), again)
        found.append(_culprit(hunt, change, parent, seen, seen_parent))
    return tuple(found)


def report(hunt: Hunt, notes: Notes, found: Sequence[Culprit]) -> list[str]:
    """A history's part of the answer, for a person: what was skipped, what was found, and the text for a thread."""
    lines = _skipped(hunt, notes)
    mine = [each for each in found if each.history is hunt.history]
    for culprit in mine:
        lines += [*culprit.lines(), "", culprit.markdown(hunt.environment)]
    groups = hunt.history.groups
    return (
        lines
        if mine
        else [*lines, f"{hunt.case.id}: no such change found between {groups[0].name} and {groups[-1].name}"]
    )


def hunt_json(hunt: Hunt, notes: Notes, found: Sequence[Culprit]) -> dict[str, Any]:
    """The same for a program: commits, runs and seconds too."""
    groups = hunt.history.groups
    return {
        "every": hunt.history.every,
        "candidates": len(groups),
        "ends": [groups[0].first.id, groups[-1].first.id],
        "seen": {name: {**_plain(each), "why": each.why} for name, each in notes.found.items()},
        "changes": [each.to_json() for each in found if each.history is hunt.history],
    }


def _check_ends(hunt: Hunt, known: Mapping[int, State]) -> None:
    """Raises ``UsageError`` where an end does not show what it was named for."""
    groups, repository = hunt.history.groups, hunt.history.repository
    if hunt.ends is None:
        return
    good, bad = map(repository.commit, hunt.ends)
    order = (State.GOOD, State.BAD) if good.committed <= bad.committed else (State.BAD, State.GOOD)
    for index, wanted in zip((0, len(groups) - 1), order, strict=True):
        seen = known.get(index, State.SKIPPED)
        if seen not in (wanted, State.SKIPPED):
            shows = "shows the failure" if seen is State.BAD else "does not show the failure"
            end = groups[index].first
            raise UsageError(
                f"{end.id[:10]} ({end.subject}) {shows}, and was given as the {wanted.value} end: give another"
            )


def _skipped(hunt: Hunt, notes: Notes) -> list[str]:
    by_name = {group.name: group.first for group in hunt.history.groups}
    return [
        f"skipped {name} {by_name[name].subject}: {each.why}"
        for name, each in notes.found.items()
        if each.state is State.SKIPPED and name in by_name
    ]


def _culprit(hunt: Hunt, change: Change, parent: Commit, seen: ReleaseState, seen_parent: ReleaseState) -> Culprit:
    history = hunt.history
    group: Group = history.groups[change.high]
    doubtful = tuple(each.first for each in history.groups[change.low + 1 : change.high])
    source = of_commit(history.project, history.repository, group.first)
    release = bases.first_release_with(source) or ""
    return Culprit(hunt.case, history, group.first, parent, change.is_fix, doubtful, seen, seen_parent, release)


def _times(seen: ReleaseState) -> str:
    if not seen.runs:
        return f"no clear verdict ({seen.why})"
    return f"failed {seen.bad} of {seen.runs} times" if seen.bad else f"passed {seen.runs} of {seen.runs} times"


def _plain(seen: ReleaseState) -> dict[str, Any]:
    return {"state": seen.state.value, "runs": seen.runs, "bad": seen.bad, "seconds": seen.seconds}
