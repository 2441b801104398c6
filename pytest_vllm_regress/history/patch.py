"""The effect of a patch on the cases: each runs once on the work tree and once on the commit that
it
is compared with."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..cases.model import Case
from ..cases.results import TestResult, verdict_of
from ..cases.verdict import Verdict, excerpt
from ..environments.git import Commit, Repository
from ..environments.names import resolve
from ..environments.sources import Source, find_source, parse_name, set_clones
from ..errors import UsageError
from ..runner.batch import Batch
from ..util.files import expand_home, peek
from .commits import UPSTREAM

_MAX_TEXT = 1024 * 1024

_PULL = re.compile(r"/pull/(\d+)\Z")


class PatchEffect(enum.StrEnum):
    """PatchEffect of the patch on a case. ``UNCLEAR``: one side gave no clear verdict."""

    BREAKS = "breaks"
    FIXES = "fixes"
    UNCLEAR = "unclear"
    UNCHANGED = "leaves"


@dataclass(frozen=True)
class CaseEffect:
    """PatchEffect of the patch on one case.

    ``before``, ``after``: the verdicts without and with the patch.
    ``tests``: the tests with that effect. ``why``: the reason that the first of them gave.
    """

    case: Case
    effect: PatchEffect
    before: str
    after: str
    tests: tuple[str, ...] = ()
    why: str = ""


def base_of(source: Source, against: str | None) -> Commit:
    """Return the commit to compare with: ``against``; else where the branch left upstream's; else
    HEAD if there are uncommitted changes.

    Raises ``UsageError`` if there is nothing to compare with.
    """
    repository = source.repository
    if against is not None:
        return repository.commit(against)
    repository.need_history()
    for name in UPSTREAM:
        if repository.has(name):
            base = repository.merge_base(source.commit.id, name)
            if base is not None and base != source.commit.id:
                return repository.commit(base)
    if source.changed:
        return source.commit
    raise UsageError(
        f"{source.tree}: no changes, and {source.commit.id[:10]} is in upstream's branch: there is no patch to try. "
        "Give a commit to compare with: --base REV"
    )


def changed_files(source: Source, base: Commit) -> frozenset[str]:
    """Return the files of the package that differ between the work tree and ``base``, including new
    and removed ones."""
    listed = source.repository.files(base.id, source.project.folder)
    before = dict(zip(listed, source.repository.contents(listed.values()), strict=True))
    after = dict(source.files())
    return frozenset(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )


def nearest_first(
    cases: Iterable[Case], changed: frozenset[str], repository: Repository
) -> tuple[Case, ...]:
    """Return the cases in order of relevance: those whose documented fix touched the changed
    modules, then those whose files name them."""
    modules = {path.removesuffix(".py").replace("/", ".") for path in changed} | set(changed)

    def nearness(case: Case) -> tuple[int, int]:
        merges = (
            repository.merge_of(match[1]) for url in case.fixed_by if (match := _PULL.search(url))
        )
        touched = {path for merge in merges if merge is not None for path in merge.touched}
        text = "\n".join(
            peek(file, _MAX_TEXT)
            for pattern in ("*.py", "*.toml", "*.md")
            for file in sorted(case.directory.glob(pattern))
        )
        return -len(touched & changed), -sum(module in text for module in modules)

    return tuple(sorted(cases, key=nearness))


def effects(
    cases: Sequence[Case], before: Sequence[TestResult], after: Sequence[TestResult]
) -> tuple[CaseEffect, ...]:
    """What does a patch break or fix? Return its effect on each case, from the results on both
    sides."""
    return tuple(
        _effect(
            case,
            [r for r in before if r.case_id == case.id],
            [r for r in after if r.case_id == case.id],
        )
        for case in cases
    )


def _effect(case: Case, before: Sequence[TestResult], after: Sequence[TestResult]) -> CaseEffect:
    """Return the gravest effect on any test of the case."""
    old_verdict, new_verdict = (
        verdict_of(side).value if side else "no result" for side in (before, after)
    )
    new_results = {result.test: result for result in after}
    by_effect: dict[PatchEffect, dict[str, str]] = {}
    for old in before:
        new = new_results.get(old.test)
        effect = _effect_on_test(old.verdict, new.verdict if new else Verdict.INCONCLUSIVE)
        why = excerpt(new.reason) if new else "no result with the patch"
        by_effect.setdefault(effect, {})[old.test] = why
    effect = next((effect for effect in PatchEffect if effect in by_effect), PatchEffect.UNCLEAR)
    tests = by_effect.get(effect, {}) if effect is not PatchEffect.UNCHANGED else {}
    why = next(iter(tests.values()), "")
    return CaseEffect(case, effect, old_verdict, new_verdict, tuple(tests), why)


def _effect_on_test(before: Verdict, after: Verdict) -> PatchEffect:
    """Return the effect on one test.

    Any failure of a test that passed before is a break; another failure than the documented one is
    no fix.
    """
    unclear = after is Verdict.INCONCLUSIVE
    if before.shown is False and (after.shown or unclear):
        return PatchEffect.BREAKS
    if before.shown and after.shown is False:
        return PatchEffect.FIXES
    unclear |= before is Verdict.INCONCLUSIVE or before.shown is not after.shown
    return PatchEffect.UNCLEAR if unclear else PatchEffect.UNCHANGED


@dataclass(frozen=True)
class PatchComparison:
    """A comparison of the environments ``before`` and ``after`` the patch, both over the
    environment ``base_environment``."""

    base: Commit
    changed: frozenset[str]
    cases: tuple[Case, ...]
    base_environment: str
    before: str
    after: str

    @property
    def batches(self) -> tuple[Batch, ...]:
        """The cases on both sides."""
        return tuple(Batch(name, self.cases, {}) for name in (self.before, self.after))

    @property
    def key(self) -> list[str]:
        """The key of the journal."""
        overlays = (resolve(name).overlay for name in (self.before, self.after))
        keys = [overlay.source.key for overlay in overlays if overlay is not None]
        return [*keys, self.base_environment, *(case.id for case in self.cases)]

    def effects(self, results: Sequence[TestResult]) -> tuple[CaseEffect, ...]:
        """Return what the patch does to each case."""
        before, after = (
            [result for result in results if result.environment == resolve(name).name]
            for name in (self.before, self.after)
        )
        return effects(self.cases, before, after)


def plan_comparison(
    tree: Path,
    cases: tuple[Case, ...],
    sort_cases: bool,
    against: str | None,
    environment: str | None,
) -> PatchComparison:
    """Find the base and the changed files of a work tree of vLLM.

    ``sort_cases``: run those first that concern the changed modules most. ``against``: the revision
    to compare with; ``environment``: what both sides are laid over; None: what fits best. Raises
    ``UsageError`` if nothing was changed.
    """
    name = parse_name(f"vllm@{expand_home(tree).absolute()}")
    assert name is not None
    source = find_source(name)
    set_clones([str(source.tree)])  # the base is a commit of the tree's own repository
    base = base_of(source, against)
    changed = changed_files(source, base)
    if not changed:
        raise UsageError(
            f"{tree}: its vllm/ is that of {base.id[:10]}: nothing to try. Give what to compare with: --base REV"
        )
    if sort_cases:
        cases = nearest_first(cases, changed, source.repository)
    if environment is None:
        overlay = resolve(f"vllm@{base.id}").overlay
        assert overlay is not None
        environment = overlay.base.name
    before, after = f"{environment}+vllm@{base.id}", f"{environment}+vllm@{source.tree}"
    return PatchComparison(base, changed, cases, environment, before, after)
