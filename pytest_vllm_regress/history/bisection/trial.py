"""Try a patch: the same cases on a work tree and on the commit that it is compared with."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ...cases.model import Case
from ...cases.results import TestResult
from ...environments.git import Commit
from ...environments.names import resolve
from ...environments.sources import find_source, parse_name, set_clones
from ...errors import UsageError
from ...runner.batch import Batch
from ...util.files import expand_home
from .patch import CaseEffect, base_of, changed_files, effects, nearest_first


@dataclasses.dataclass(frozen=True)
class TrialRequest:
    """A work tree of vLLM and the cases to try. ``sort_cases``: run those first that concern the
    changed modules most.

    ``against``: the revision to compare with, ``environment``: what both sides are laid over; None:
    what fits best.
    """

    tree: Path
    cases: tuple[Case, ...]
    sort_cases: bool
    against: str | None = None
    environment: str | None = None


@dataclasses.dataclass(frozen=True)
class PatchTrial:
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
        """The key of this trial's journal."""
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


def plan_trial(request: TrialRequest) -> PatchTrial:
    """Find the base and the changed files of a work tree.

    Raises ``UsageError`` if nothing was changed.
    """
    name = parse_name(f"vllm@{expand_home(request.tree).absolute()}")
    assert name is not None
    source = find_source(name)
    set_clones([str(source.tree)])  # the base is a commit of the tree's own repository
    base = base_of(source, request.against)
    changed = changed_files(source, base)
    if not changed:
        raise UsageError(
            f"{request.tree}: its vllm/ is that of {base.id[:10]}: nothing to try. Give what to compare with: --base REV"
        )
    cases = request.cases
    if request.sort_cases:
        cases = nearest_first(cases, changed, source.repository)
    environment = request.environment or _fitting_release(base.id)
    before, after = f"{environment}+vllm@{base.id}", f"{environment}+vllm@{source.tree}"
    return PatchTrial(base, changed, cases, environment, before, after)


def _fitting_release(commit: str) -> str:
    """Return the release that fits the commit best: both sides are laid over it."""
    overlay = resolve(f"vllm@{commit}").overlay
    assert overlay is not None
    return overlay.base.name
