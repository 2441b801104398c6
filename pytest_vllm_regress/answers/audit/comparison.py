"""Compare two sets of versions: failures that the change fixes, introduces or leaves, by recorded
results or else by the cases' ranges."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...cases.model import Case
from ...cases.results import TestResult
from ...environments.installed import VLLM
from ...util.report import markdown_table
from ...util.text import markdown_cell
from ...util.versions import version_of
from ..deployments.configuration import Deployment
from ..deployments.relevance import Reach, Relevance, relevance
from .features import lacks_feature
from .matching import Inventory, case_fields, find, notes, relevant, severity, unknown_packages
from .recorded import latest, of_unknown_packages, recorded, words_of
from .verdict_table import VerdictTable, read_table

if TYPE_CHECKING:
    from .start import ChangedUse, StartCheck


class UpgradeEffect(enum.StrEnum):
    """Effect of the change on a failure, the most important first.

    BREAKS: something that worked before. NEW_FEATURE: the older side does not have what fails.
    UNKNOWN: one side does not say which version of a package it has.
    """

    BREAKS = "breaks"
    NEW_FEATURE = "new feature"
    LEAVES = "leaves"
    FIXES = "fixes"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ComparedCase:
    """A failure that one side or both have. ``before`` and ``after``: how that is known.

    ``relevance``: whether a deployment can show it; None without one.
    """

    case: Case
    effect: UpgradeEffect
    before: str
    after: str
    relevance: Relevance | None = None

    @property
    def reach_rank(self) -> int:
        """Position for sorting: what a deployment can reach comes first."""
        return self.relevance.reach.rank if self.relevance else 0

    @property
    def reach_cells(self) -> tuple[str, ...]:
        """Whether the deployment can reach it, as the first cell of a row; none without one."""
        return (str(self.relevance.reach),) if self.relevance else ()

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), **case_fields(self.case, "title", "severity", "workaround")}


@dataclass(frozen=True)
class Comparison:
    """Two inventories, the versions of the packages that cases are about, and the changes, what
    breaks first.

    ``unreachable``: how many changes were left out because the deployment cannot show them.
    ``used``: what the deployment uses and the newer side no longer has.
    ``start``: whether the deployment starts with the newer side; None without one.
    """

    before: str
    after: str
    versions: tuple[Mapping[str, str], Mapping[str, str]]
    changes: tuple[ComparedCase, ...]
    notes: tuple[str, ...]
    unreachable: int = 0
    used: tuple[ChangedUse, ...] = ()
    start: StartCheck | None = None

    def of(self, effect: UpgradeEffect) -> tuple[ComparedCase, ...]:
        """Return the changes with this effect."""
        return tuple(change for change in self.changes if change.effect is effect)

    def to_json(self) -> dict[str, Any]:
        before, after = self.versions
        return {
            "before": {"source": self.before, "versions": before},
            "after": {"source": self.after, "versions": after},
            "changes": [change.to_json() for change in self.changes],
            "unreachable": self.unreachable,
            "no_longer_there": self.used,
            "start": self.start,
            "notes": self.notes,
        }

    def counts(self) -> str:
        """Return the number of failures by effect, in words; with a deployment first of those that
        it can reach."""
        groups = {
            str(reach): [c for c in self.changes if c.relevance and c.relevance.reach is reach]
            for reach in _SHOWN
        }
        if not any(groups.values()):
            return _counts(self.changes)
        parts = [f"{reach}: {_counts(group)}" for reach, group in groups.items()]
        return "; ".join(
            [*parts, *([f"{self.unreachable} not reachable"] if self.unreachable else [])]
        )

    @property
    def worse(self) -> bool:
        """Whether something that worked no longer does, what the deployment uses is gone, or it does
        not start. A new feature with a failure is no step back."""
        gone = any(use.breaks for use in self.used)
        refused = self.start is not None and self.start.refused
        return gone or refused or bool(self.of(UpgradeEffect.BREAKS))

    def will_start(self) -> str:
        """Return whether the deployment starts with the newer side, in words; empty without one."""
        return f"will it start with {self.after}? {self.start}" if self.start else ""

    def markdown(self) -> str:
        """Return a comment for a pull request: what the deployment uses and is gone, the most
        important failures, and the other ones folded."""
        title = f"**Documented vLLM failures, {markdown_cell(self.before)} to {markdown_cell(self.after)}**: {self.counts()}"
        gone = [f"- {markdown_cell(str(use))}" for use in self.used]
        start = [f"**{self.will_start()}**", ""] if self.start else []
        parts = [*start, title]
        if gone:
            parts += ["", "The deployment uses, and the new version does not have:", "", *gone]
        order = (UpgradeEffect.BREAKS, UpgradeEffect.NEW_FEATURE, UpgradeEffect.FIXES)
        sides = ("after", "after", "before")
        shown = [
            (change, getattr(change, side))
            for effect, side in zip(order, sides, strict=True)
            for change in self.of(effect)
        ]
        shown.sort(key=lambda pair: pair[0].reach_rank)
        rows = [
            (*change.reach_cells, change.effect, case.id, severity(case), case.title, known)
            for change, known in shown
            for case in [change.case]
        ]
        reach = ("here",) if self.start or any(c.relevance for c in self.changes) else ()
        header = (*reach, "effect", "case", "severity", "failure", "known by")
        if rows:
            parts += ["", *markdown_table(header, rows[:MAX_FIRST])]
        if len(rows) > MAX_FIRST:
            more = f"<details><summary>{len(rows) - MAX_FIRST} more</summary>"
            parts += ["", more, "", *markdown_table(header, rows[MAX_FIRST:]), "", "</details>"]
        return "\n".join(parts)


def _counts(changes: Iterable[ComparedCase]) -> str:
    by_effect = Counter(change.effect for change in changes)
    return ", ".join(
        f"{effect} {by_effect[effect]}"
        for effect in UpgradeEffect
        if by_effect[effect] or effect not in ("unknown", "new feature")
    )


MAX_FIRST = 5
"""Failures that a comment shows without being unfolded."""


def compare(
    before: Inventory,
    after: Inventory,
    cases: Sequence[Case],
    results: Iterable[TestResult] = (),
    deployments: Sequence[Deployment] = (),
) -> Comparison:
    """Return what the change from ``before`` to ``after`` does to each failure that one of them
    has. ``results``: of a run just now. ``deployments``: what they cannot show is left out."""
    table = read_table(cases).with_results(results)
    found = [
        ComparedCase(case, effect, old.reason, new.reason, _relevance(case, side, deployments))
        for case in cases
        for old in [_known(before, case, table)]
        for new in [_known(after, case, table)]
        if old.shown or new.shown
        for effect in [_effect(old, new)]
        for side in [before if effect is UpgradeEffect.FIXES else after]
    ]
    changes = [c for c in found if c.relevance is None or c.relevance.reach in _SHOWN]
    ranks = list(UpgradeEffect)
    changes.sort(
        key=lambda c: (
            c.reach_rank,
            ranks.index(c.effect),
            severity(c.case).rank,
            c.case.id,
        )
    )
    return Comparison(
        before.source,
        after.source,
        (relevant(before, cases), relevant(after, cases)),
        tuple(changes),
        tuple(
            dict.fromkeys(note for side in (before, after) for note in _notes(side, cases, table))
        ),
        unreachable=len(found) - len(changes),
        used=_no_longer_there(before, after, deployments),
        start=_start(after, deployments),
    )


def _notes(side: Inventory, cases: Sequence[Case], table: VerdictTable) -> Iterator[str]:
    decided = [case for case, _ in of_unknown_packages(side, cases, table)]
    return notes(side, cases, decided)


_SHOWN = (Reach.REACHABLE, Reach.UNKNOWN)


def _relevance(case: Case, side: Inventory, deployments: Sequence[Deployment]) -> Relevance | None:
    versions = {name: listed[0] for name, listed in side.versions.items()}
    return relevance(case, versions, deployments) if deployments else None


def _no_longer_there(
    before: Inventory, after: Inventory, deployments: Sequence[Deployment]
) -> tuple[ChangedUse, ...]:
    old, new = (_version(side) for side in (before, after))
    if not deployments or not old or not new:
        return ()
    from .start import changed_uses  # which opens the history

    return changed_uses(tuple(deployments), old, new)


def _start(side: Inventory, deployments: Sequence[Deployment]) -> StartCheck | None:
    version = _version(side)
    if not deployments or not version:
        return None
    from .start import check_start  # which opens the history

    return check_start(tuple(deployments), version)


def _version(side: Inventory) -> str:
    texts = (text for name in VLLM for text in side.versions.get(name, ()))
    return next((text for text in texts if version_of(text) is not None), "")


def not_recorded(inventory: Inventory, cases: Sequence[Case]) -> tuple[Case, ...]:
    """Return the cases of which only the range says whether the packages have the failure."""
    table = read_table(cases)
    return tuple(case for case in cases if latest(recorded(inventory, case, table)) is None)


@dataclass(frozen=True)
class _Known:
    """Whether packages have a failure (None: not known), and how that is known or why not.

    ``lacks``: they do not have the feature that fails.
    """

    shown: bool | None
    reason: str
    lacks: bool = False


def _effect(before: _Known, after: _Known) -> UpgradeEffect:
    if before.shown is None or after.shown is None:
        return UpgradeEffect.UNKNOWN
    if before.shown and after.shown:
        return UpgradeEffect.LEAVES
    if after.shown:
        return UpgradeEffect.NEW_FEATURE if before.lacks else UpgradeEffect.BREAKS
    return UpgradeEffect.FIXES


def _known(inventory: Inventory, case: Case, table: VerdictTable) -> _Known:
    entries = recorded(inventory, case, table)
    if last := latest(entries):
        return _Known(last.shown, words_of(last))
    versions = {name: listed[0] for name, listed in inventory.versions.items()}
    findings = find(inventory, [case])
    if lacks := lacks_feature(case, findings[0].versions if findings else versions, table):
        return _Known(False, lacks, lacks=True)
    if findings:
        not_run = "".join(sorted({f"; the release {e.cause.words}" for e in entries if e.cause}))
        return _Known(True, f"range: {findings[0].reason.removeprefix('affected: ')}{not_run}")
    if unknown := unknown_packages(inventory, case):
        return _Known(None, f"no version of {' and '.join(unknown)} is known")
    return _Known(False, f"range: not in {case.affected_text()}")
