"""Which commits a bisection chooses from: those between two ends, those that change nothing that is imported grouped with the one before."""

from __future__ import annotations

import dataclasses

from ..environments import bases
from ..environments.git import Commit, Repository
from ..environments.sources import Project
from ..errors import UsageError
from ..util.versions import version_of


@dataclasses.dataclass(frozen=True)
class Group:
    """Commits that run alike: ``first`` changes something, ``others`` after it change nothing that is imported."""

    first: Commit
    others: tuple[Commit, ...] = ()

    @property
    def name(self) -> str:
        return self.first.id[:10]


@dataclasses.dataclass(frozen=True)
class History:
    """The commits of a search. The first group begins with the older end; ``every`` counts all commits."""

    project: Project
    repository: Repository
    groups: tuple[Group, ...]
    every: int

    def parent(self, group: Group) -> Commit:
        """The commit right before a group, on the way that is searched."""
        at = self.groups.index(group)
        before = self.groups[at - 1]
        return before.others[-1] if before.others else before.first


def history(project: Project, repository: Repository, one: str, other: str, *, first_parent: bool = True) -> History:
    """The commits from one end to the other, whichever is older.

    Where neither is in the other's history, from the newest commit that both have: a release is often tagged on a branch of its own.
    Raises ``UsageError`` for a shallow clone, ends that are one commit, and ends without a common history.
    """
    repository.need_history()
    low, high = repository.commit(one), repository.commit(other)
    if repository.is_ancestor(high.id, low.id):
        low, high = high, low
    if not repository.is_ancestor(low.id, high.id):
        low, high = sorted((low, high), key=lambda commit: commit.committed)
        base = repository.merge_base(low.id, high.id)
        if base is None:
            raise UsageError(f"{repository.place}: {one} and {other} have no history in common")
        low = repository.commit(base)
    between = repository.between(low.id, high.id, first_parent=first_parent)
    if not between:
        raise UsageError(f"{one} and {other} are one commit, {low.id[:10]}: a bisection needs two")
    groups = [Group(low)]
    for commit in between:
        if _is_imported(project, commit):
            groups.append(Group(commit))
        else:
            groups[-1] = Group(groups[-1].first, (*groups[-1].others, commit))
    return History(project, repository, tuple(groups), len(between) + 1)


def end_of(project: Project, repository: Repository, text: str, branch: str) -> str:
    """The commit that an end names: a revision, or a release (its tag, else the last commit on ``branch`` before its upload)."""
    version = version_of(text) if "." in text else None  # an id may be digits alone
    if version is None or repository.has(text):
        return repository.commit(text).id
    found = bases.release_commit(project, repository, str(version), branch)
    if found is None:
        raise UsageError(
            f"{repository.place} has no tag for {project.distribution} {version}, and no commit on {branch} from before its day: give a revision"
        )
    return found


def _is_imported(project: Project, commit: Commit) -> bool:
    """Whether the commit touches the package or what it needs. A merge is asked for what it brought."""
    needs = {path for group in project.requirements for path in group}
    return any(path.startswith(f"{project.folder}/") or path in needs for path in commit.touched)
