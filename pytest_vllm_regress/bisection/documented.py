"""Whether a case names the commit that brought or mended its failure: searched between the releases that its evidence has on both sides."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections.abc import Callable, Sequence

from packaging.version import Version

from ..cases import proof
from ..cases.model import Case
from ..cases.proof import AFFECTED, Bisected, Proof
from ..environments.sources import PROJECTS, clone_of
from ..errors import UsageError
from ..runner import runner as runs
from ..util.versions import version_of
from .candidates import commit_environments
from .commits import end_of, history
from .culprit import Culprit, Hunt, find
from .search import Notes


@dataclasses.dataclass(frozen=True)
class Ends:
    """Two releases of ``package``, next to each other in the evidence, of which one shows the failure. ``is_fix``: the older one does."""

    package: str
    older: str
    younger: str
    is_fix: bool

    def __str__(self) -> str:
        return f"{self.package} {self.older} and {self.younger}"


@dataclasses.dataclass(frozen=True)
class How:
    """How commits are searched: over the environment ``env`` (None: what fits each best), releases without a tag looked for on ``branch``;
    ``trials`` and ``repeat`` as in ``search.Plan``; ``arguments``: those that pytest gets."""

    env: str | None = None
    branch: str = "HEAD"
    trials: int = 1
    repeat: int = 2
    arguments: tuple[str, ...] = ()


def ends_of(case: Case, evidence: Proof) -> tuple[Ends, ...]:
    """Where the evidence changes from one release to the next, oldest first, for every package of the case that is run from source.

    Raises ``UsageError`` where it does not: there is nothing to search between.
    """
    found: list[Ends] = []
    for package in (each.package for each in case.affected if each.package in PROJECTS):
        sides: dict[Version, set[bool]] = {}
        for shown in evidence.environments:
            version = version_of(shown.versions.get(package, ""))
            if version is not None:
                sides.setdefault(Version(version.public), set()).add(shown.role == AFFECTED)
        told = [(version, side.pop()) for version, side in sorted(sides.items()) if len(side) == 1]
        found += [
            Ends(package, str(older), str(younger), bad)
            for (older, bad), (younger, still) in itertools.pairwise(told)
            if bad is not still
        ]
    if not found:
        raise UsageError(
            f"{case.path}: no release of {' or '.join(PROJECTS)} in its evidence shows the failure next to one that does not: "
            "there is nothing to search between"
        )
    return tuple(found)


def trace(
    case: Case,
    ends: Ends,
    how: How,
    runner: runs.RunsJobs,
    build: Callable[[str], None] | None,
    tell: runs.Say,
) -> tuple[list[Bisected], list[str], Notes]:
    """The commits between two releases at which the failure changed as the evidence says, what is wrong with them or the case, and the notes.

    The notes make a second search between the same releases run nothing twice; the caller forgets them.
    """
    project = PROJECTS[ends.package]
    clone = clone_of(project)
    older, younger = (end_of(project, clone, each, how.branch) for each in (ends.older, ends.younger))
    given = (younger, older) if ends.is_fix else (older, younger)
    environment = commit_environments(case, ends.package, how.env)
    hunt = Hunt(case, history(project, clone, older, younger), environment, how.repeat, how.trials, given)
    key = [case.id, proof.fingerprint(case), "documented", str(how.trials), *how.arguments]
    notes = Notes.in_cache([*key, *hunt.plan().environments])
    culprits = [each for each in find(hunt, notes, runner, build, tell) if each.is_fix is ends.is_fix]
    found = [_bisected(each, hunt, notes, how.arguments) for each in culprits]
    wrong = [fault for each in culprits if (fault := _doubt(each))] or [
        f"{case.path}: {fault}" for each in found if (fault := each.fault(case))
    ]
    if not found:
        wrong.append(f"no such change found between {ends}: skipped were too many, or the failure needs more trials")
    return found, wrong, notes


def _doubt(found: Culprit) -> str:
    if not found.confirmed:
        return f"{found.commit.id[:10]} is not confirmed: further runs showed something else; more trials may tell (--trials)"
    if found.doubtful:
        names = ", ".join(each.id[:10] for each in found.doubtful)
        return f"{found.commit.id[:10]}, or one of those before it without a clear verdict: {names}"
    return ""


def _bisected(found: Culprit, hunt: Hunt, notes: Notes, arguments: Sequence[str]) -> Bisected:
    seen = notes.found.values()
    return Bisected(
        kind="fix" if found.is_fix else "break",
        package=found.history.project.distribution,
        commit=found.commit.id,
        parent=found.parent.id,
        subject=found.commit.subject,
        address=found.address,
        candidates=len(hunt.history.groups),
        runs=sum(max(each.runs, 1) for each in seen),
        seconds=round(sum(each.seconds for each in seen), 1),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        arguments=tuple(arguments),
    )
