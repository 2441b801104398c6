"""The commits that a bisection chooses from: those between two ends.

Commits that change nothing that is imported join the one before.
"""

from __future__ import annotations

import dataclasses

from ...environments import bases
from ...environments.git import Commit, Repository
from ...environments.sources import Project
from ...errors import UsageError
from ...util.versions import version_of


@dataclasses.dataclass(frozen=True)
class Group:
    """Commits that behave alike:

    ``others`` follow ``first`` and change nothing that is imported.
    """

    first: Commit
    others: tuple[Commit, ...] = ()

    @property
    def name(self) -> str:
        return self.first.id[:10]


@dataclasses.dataclass(frozen=True)
class History:
    """The commits of a search, oldest first; the first group starts at the older end.

    ``total``: number of commits in all groups.
    """

    project: Project
    repository: Repository
    groups: tuple[Group, ...]
    total: int

    def parent(self, group: Group) -> Commit:
        """Return the commit right before ``group``."""
        before = self.groups[self.groups.index(group) - 1]
        return before.others[-1] if before.others else before.first


def history(
    project: Project, repository: Repository, first: str, second: str, *, first_parent: bool = True
) -> History:
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
    groups = [Group(low)]
    for commit in between:
        if _changes_what_is_imported(project, commit):
            groups.append(Group(commit))
        else:
            groups[-1] = Group(groups[-1].first, (*groups[-1].others, commit))
    return History(project, repository, tuple(groups), len(between) + 1)


def around(project: Project, repository: Repository, commit: Commit) -> History:
    """Return the history of two commits: the first parent of ``commit``, and ``commit``."""
    return History(
        project, repository, (Group(repository.commit(commit.parents[0])), Group(commit)), 2
    )


def end_of(project: Project, repository: Repository, text: str, branch: str) -> str:
    """Return the id of the commit that ``text`` names: a revision, or a release.

    A release is its tag, else the last commit on ``branch`` before the day of its upload.
    """
    version = (
        version_of(text) if "." in text else None
    )  # without a dot it may be a commit id of digits only
    if version is None or repository.has(text):
        return repository.commit(text).id
    commit = bases.release_commit(project, repository, str(version), branch)
    if commit is None:
        raise UsageError(
            f"{repository.place} has no tag for {project.distribution} {version}, and no commit on {branch} before its release day: "
            "give a revision"
        )
    return commit


def _changes_what_is_imported(project: Project, commit: Commit) -> bool:
    """Return whether the commit touches the package or its requirement files.

    For a merge, the files that it brought in count.
    """
    return any(
        path.startswith(f"{project.folder}/") or path in project.requirement_files
        for path in commit.touched
    )
