"""Compare two sets of versions: failures that the change fixes, introduces or leaves, by recorded
results or else by the cases' ranges."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from ...cases.model import Case
from ...cases.results import TestResult
from ...environments.installed import VLLM
from ...util.report import markdown_table
from ...util.text import markdown_cell
from ...util.versions import version_of
from .boundaries import before_feature
from .matching import Inventory, case_fields, find, notes, relevant, severity, unknown_packages
from .verdict_table import Recorded, VerdictTable, read_table


class UpgradeEffect(enum.StrEnum):
    """Effect of the change on a failure, the most important first.

    UNKNOWN: one side does not say which version of a package it has.
    """

    BREAKS = "breaks"
    LEAVES = "leaves"
    FIXES = "fixes"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ComparedCase:
    """A failure that one side or both have. ``before`` and ``after``: how that is known."""

    case: Case
    effect: UpgradeEffect
    before: str
    after: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), **case_fields(self.case, "title", "severity", "workaround")}


@dataclass(frozen=True)
class Comparison:
    """Two inventories, the versions of the packages that cases are about, and the changes, what
    breaks first."""

    before: str
    after: str
    versions: tuple[Mapping[str, str], Mapping[str, str]]
    changes: tuple[ComparedCase, ...]
    notes: tuple[str, ...]

    def of(self, effect: UpgradeEffect) -> tuple[ComparedCase, ...]:
        """Return the changes with this effect."""
        return tuple(change for change in self.changes if change.effect is effect)

    def to_json(self) -> dict[str, Any]:
        before, after = self.versions
        return {
            "before": {"source": self.before, "versions": before},
            "after": {"source": self.after, "versions": after},
            "changes": [change.to_json() for change in self.changes],
            "notes": self.notes,
        }

    def counts(self) -> str:
        """Return the number of failures by effect, in words."""
        counts = ((effect, len(self.of(effect))) for effect in UpgradeEffect)
        return ", ".join(
            f"{effect} {count}" for effect, count in counts if count or effect != "unknown"
        )

    def markdown(self) -> str:
        """Return a comment for a pull request: what breaks and what is fixed, and the number of
        failures that stay."""
        title = f"**Documented vLLM failures, {markdown_cell(self.before)} to {markdown_cell(self.after)}**: {self.counts()}"
        rows = [
            (effect, change.case.id, severity(change.case), change.case.title, known)
            for effect, side in ((UpgradeEffect.BREAKS, "after"), (UpgradeEffect.FIXES, "before"))
            for change in self.of(effect)
            for known in [getattr(change, side)]
        ]
        header = ("effect", "case", "severity", "failure", "known by")
        return "\n".join([title, *(["", *markdown_table(header, rows)] if rows else [])])


def compare(
    before: Inventory, after: Inventory, cases: Sequence[Case], results: Iterable[TestResult] = ()
) -> Comparison:
    """Return what the change from ``before`` to ``after`` does to each failure that one of them
    has. ``results``: of a run just now."""
    table = read_table(cases).with_results(results)
    changes = [
        ComparedCase(case, _effect(old, new), old_reason, new_reason)
        for case in cases
        for old, old_reason in [_known(before, case, table)]
        for new, new_reason in [_known(after, case, table)]
        if old or new
    ]
    ranks = list(UpgradeEffect)
    changes.sort(key=lambda c: (ranks.index(c.effect), severity(c.case).rank, c.case.id))
    return Comparison(
        before.source,
        after.source,
        (relevant(before, cases), relevant(after, cases)),
        tuple(changes),
        tuple(dict.fromkeys((*notes(before, cases), *notes(after, cases)))),
    )


def not_recorded(inventory: Inventory, cases: Sequence[Case]) -> tuple[Case, ...]:
    """Return the cases of which only the range says whether the packages have the failure."""
    table = read_table(cases)
    return tuple(case for case in cases if _latest(_recorded(inventory, case, table)) is None)


def _effect(before: bool | None, after: bool | None) -> UpgradeEffect:
    if before is None or after is None:
        return UpgradeEffect.UNKNOWN
    if before and after:
        return UpgradeEffect.LEAVES
    return UpgradeEffect.BREAKS if after else UpgradeEffect.FIXES


def _known(inventory: Inventory, case: Case, table: VerdictTable) -> tuple[bool | None, str]:
    """Return whether the packages have the failure (None: not known), and how that is known or why
    not."""
    entries = _recorded(inventory, case, table)
    if recorded := _latest(entries):
        state = "observed" if recorded.shown else "passed"
        place = f"{recorded.environment} ({recorded.device}, {recorded.date})"
        return recorded.shown, f"{state} in {place}"
    findings = find(inventory, [case])
    if findings and before_feature(case, findings[0].versions, table):
        return False, "it does not have the feature that fails"
    if findings:
        not_run = sorted({f"; the release {e.cause.words}" for e in entries if e.cause})
        return True, f"range: {findings[0].reason.removeprefix('affected: ')}{''.join(not_run)}"
    if unknown := unknown_packages(inventory, case):
        return None, f"no version of {' and '.join(unknown)} is known"
    return False, f"range: not in {case.affected_text()}"


def _latest(entries: Iterable[Recorded]) -> Recorded | None:
    """Return the last result that tells something."""
    telling = [entry for entry in entries if entry.shown is not None]
    return max(telling, key=lambda entry: entry.date, default=None)


def _recorded(inventory: Inventory, case: Case, table: VerdictTable) -> list[Recorded]:
    """Return what was recorded about the only package that decides, in its only version.

    For a release of vLLM of which no lock is known, that is a result with the packages of the day
    after the release.
    """
    package = case.affected[0].package
    names = VLLM if package == "vllm" else (package,)
    name = next((name for name in names if name in inventory.versions), package)
    versions = inventory.versions.get(name, ())
    if inventory.release and unknown_packages(inventory, case):
        # Without overlays such as +transformers==5.23.0.
        plain = f"vllm-{Version(inventory.release).public}"
        return [entry for entry in table.of_case(case.id) if entry.environment == plain]
    if len(case.affected) == len(versions) == 1 and (version := version_of(versions[0])):
        return table.at(case.id, name, version.public)
    return []
