"""What a patch does to the cases: each run once on a work tree and once on what it is compared with."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable, Sequence

from ..cases.model import Case
from ..cases.results import TestResult
from ..cases.verdict import combine, excerpt
from ..environments.git import Commit, Repository
from ..environments.sources import Source
from ..errors import UsageError
from ..util.files import peek
from .algorithm import State
from .search import state_of

_MAX_TEXT = 1024 * 1024

_UPSTREAM = ("upstream/main", "origin/main", "origin/HEAD", "main", "origin/master", "master")
_PULL = re.compile(r"/pull/(\d+)\Z")


class Effect(enum.StrEnum):
    """What the patch does to a case. ``UNCLEAR``: one side gave no clear verdict."""

    BROKEN = "breaks"
    MENDED = "mends"
    UNCLEAR = "unclear"
    LEFT = "leaves"


@dataclasses.dataclass(frozen=True)
class CaseEffect:
    """A case's two cells. ``before`` and ``after`` are verdicts, ``tests`` those that make the difference, ``why`` what the first of them said."""

    case: Case
    effect: Effect
    before: str
    after: str
    tests: tuple[str, ...] = ()
    why: str = ""


def base_of(source: Source, against: str | None) -> Commit:
    """The commit that the work tree is compared with: the one given; else where its branch left upstream's; else its HEAD, if it is changed.

    Raises ``UsageError`` where there is nothing to compare with.
    """
    repository = source.repository
    if against is not None:
        return repository.commit(against)
    repository.need_history()
    for name in _UPSTREAM:
        if repository.has(name):
            base = repository.merge_base(source.commit.id, name)
            if base is not None and base != source.commit.id:
                return repository.commit(base)
    if source.changed:
        return source.commit
    raise UsageError(
        f"{source.tree}: no changes, and {source.commit.id[:10]} is in upstream's branch: there is no patch to try. "
        "Give what to compare with: --against REV"
    )


def changed_files(source: Source, base: Commit) -> frozenset[str]:
    """Files of the package that the work tree has otherwise than the base, or that one of them alone has."""
    listed = source.repository.files(base.id, source.project.folder)
    before = dict(zip(listed, source.repository.contents(listed.values()), strict=True))
    after = dict(source.files())
    return frozenset(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def nearest_first(cases: Iterable[Case], changed: frozenset[str], repository: Repository) -> tuple[Case, ...]:
    """The cases, those first that the changed modules concern most: whose documented fix touched them, then whose tests and texts name them."""
    modules = {path.removesuffix(".py").replace("/", ".") for path in changed} | set(changed)

    def nearness(case: Case) -> tuple[int, int]:
        fixes = (found[1] for url in case.fixed_by if (found := _PULL.search(url)))
        touched = {path for number in fixes for path in repository.touched_by_subject(f"(#{number})")}
        text = "\n".join(
            peek(file, _MAX_TEXT)
            for pattern in ("*.py", "*.toml", "*.md")
            for file in sorted(case.directory.glob(pattern))
        )
        return -len(touched & changed), -sum(module in text for module in modules)

    return tuple(sorted(cases, key=nearness))


def effects(cases: Sequence[Case], before: Sequence[TestResult], after: Sequence[TestResult]) -> tuple[CaseEffect, ...]:
    """What the patch does to each case, from the results on both sides."""
    return tuple(
        _effect(case, [r for r in before if r.case_id == case.id], [r for r in after if r.case_id == case.id])
        for case in cases
    )


def _effect(case: Case, before: Sequence[TestResult], after: Sequence[TestResult]) -> CaseEffect:
    old_verdict, new_verdict = (
        combine(each.verdict for each in side).value if side else "no result" for side in (before, after)
    )
    of_test = {each.test: each for each in after}
    found: dict[Effect, list[tuple[str, str]]] = {}
    for old in before:
        new = of_test.get(old.test)
        effect = _of_test(state_of([old]), state_of([new]) if new else None)
        found.setdefault(effect, []).append((old.test, excerpt(new.reason) if new else "no result with the patch"))
    effect = next((each for each in Effect if each in found), Effect.UNCLEAR)
    told = found.get(effect, []) if effect is not Effect.LEFT else []
    return CaseEffect(
        case, effect, old_verdict, new_verdict, tuple(test for test, _ in told), told[0][1] if told else ""
    )


def _of_test(before: State | None, after: State | None) -> Effect:
    """A test that passed and now fails in whatever way is broken; one that failed as documented and now fails otherwise is not mended."""
    if before is State.GOOD and after in (State.BAD, None):
        return Effect.BROKEN
    if before is State.BAD and after is State.GOOD:
        return Effect.MENDED
    return Effect.LEFT if before is after and before is not None else Effect.UNCLEAR
