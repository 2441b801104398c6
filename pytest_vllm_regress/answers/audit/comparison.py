"""Compare two sets of versions: failures that the change fixes, introduces or leaves, by recorded
results or else by the cases' ranges."""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from packaging.version import Version

from ...cases.model import Case
from ...cases.results import TestResult
from ...environments.installed import VLLM
from ...environments.names import missing_release, unavailable_reason, versions_named_by
from ...environments.recipes import find_file, load
from ...environments.sources import parse_name
from ...errors import UsageError
from ...util.files import expand_home
from ...util.text import markdown_cell
from ...util.versions import version_of
from .inventory import Inventory
from .matching import find, notes, relevant, unknown_packages
from .package_lists import read_list
from .releases import release
from .severity import severity
from .target import STDIN, read_target
from .verdict_table import Recorded, VerdictTable, read_table

ALLOWED = (
    "a release (0.8.4), an environment that has a lock (vllm-0.8.4), an environment's directory or its bin/python, a list of packages, "
    "a requirement such as vllm==0.8.4, or - for standard input"
)


class UpgradeEffect(enum.StrEnum):
    """Effect of the change on a failure, the most important first.

    UNKNOWN: one side does not say which version of a package it has.
    """

    BREAKS = "breaks"
    LEAVES = "leaves"
    FIXES = "fixes"
    UNKNOWN = "unknown"

    @property
    def rank(self) -> int:
        """Position for sorting; 0 is the most important."""
        return list(UpgradeEffect).index(self)


@dataclasses.dataclass(frozen=True)
class ComparedCase:
    """A failure that one side or both have. ``before`` and ``after``: how that is known."""

    case: Case
    effect: UpgradeEffect
    before: str
    after: str

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        return {
            "case": self.case.id,
            "title": self.case.title,
            "severity": severity(self.case).value,
            "effect": self.effect.value,
            "before": self.before,
            "after": self.after,
            "workaround": self.case.workaround,
        }


@dataclasses.dataclass(frozen=True)
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
        """Return plain values for ``--json``."""
        before, after = self.versions
        return {
            "before": {"source": self.before, "versions": dict(before)},
            "after": {"source": self.after, "versions": dict(after)},
            "changes": [change.to_json() for change in self.changes],
            "notes": list(self.notes),
        }

    def counts(self) -> str:
        """Return the number of failures by effect, in words."""
        counts = {effect: len(self.of(effect)) for effect in UpgradeEffect}
        return ", ".join(
            f"{effect} {count}"
            for effect, count in counts.items()
            if count or effect is not UpgradeEffect.UNKNOWN
        )

    def markdown(self) -> str:
        """Return a comment for a pull request: what breaks and what is fixed, and the number of
        failures that stay."""
        lines = [
            f"**Documented vLLM failures, {markdown_cell(self.before)} to {markdown_cell(self.after)}**: {self.counts()}"
        ]
        listed_changes = (*self.of(UpgradeEffect.BREAKS), *self.of(UpgradeEffect.FIXES))
        if listed_changes:
            lines += [
                "",
                "| effect | case | severity | failure | known by |",
                "| --- | --- | --- | --- | --- |",
            ]
        for change in listed_changes:
            known = change.after if change.effect is UpgradeEffect.BREAKS else change.before
            cells = (change.effect, change.case.id, severity(change.case), change.case.title, known)
            lines.append(f"| {' | '.join(map(markdown_cell, cells))} |")
        return "\n".join(lines)


def read_sides(before: str, after: str) -> tuple[Inventory, Inventory]:
    """Return the packages of both sides.

    Raises ``UsageError`` if both are standard input, which can be read only once.
    """
    if before == after == STDIN:
        raise UsageError("only one side can be - (standard input): give the other one as a file")
    return read_side(before), read_side(after)


def read_side(target: str) -> Inventory:
    """Return the packages of a release (``0.8.4``), of an environment that has a lock
    (``vllm-0.8.4``), or of anything that ``audit`` accepts.

    Raises ``UsageError`` for a release that does not exist, and for the name of an environment that
    has no lock.
    """
    if not os.path.exists(expand_home(target)):
        locks = load(find_file()).locks
        if version := version_of(target):
            if reason := missing_release("vllm", version.public, ask=False):
                raise UsageError(f"{target}: {reason}")
            return release(target, locks)
        if target == os.path.basename(target) and (lock := locks / f"{target}.txt").is_file():
            return dataclasses.replace(read_list(lock), source=target)
        if parse_name(target) is not None or versions_named_by(target):
            raise UsageError(unavailable_reason(target, ask=False) or _no_lock(target))
    return read_target(target, ALLOWED)


def _no_lock(environment: str) -> str:
    return (
        f"{environment}: this environment has no lock, so the versions in it are not known. "
        f"Give a release (0.8.4), a list of packages, or the interpreter that `vllm-regress env build {environment}` prints"
    )


def compare(
    before: Inventory, after: Inventory, cases: Sequence[Case], results: Iterable[TestResult] = ()
) -> Comparison:
    """Return what the change from ``before`` to ``after`` does to each failure that one of them
    has. ``results``: of a run just now."""
    table = read_table(cases).with_results(results)
    known = {case.id: (_known(before, case, table), _known(after, case, table)) for case in cases}
    changes = [
        ComparedCase(case, _effect(old[0], new[0]), old[1], new[1])
        for case in cases
        for old, new in [known[case.id]]
        if old[0] or new[0]
    ]
    return Comparison(
        before.source,
        after.source,
        (relevant(before, cases), relevant(after, cases)),
        tuple(
            sorted(
                changes,
                key=lambda change: (change.effect.rank, severity(change.case).rank, change.case.id),
            )
        ),
        tuple(dict.fromkeys((*notes(before, cases), *notes(after, cases)))),
    )


def not_recorded(inventory: Inventory, cases: Sequence[Case]) -> tuple[Case, ...]:
    """Return the cases of which only the range says whether the packages have the failure."""
    table = read_table(cases)
    return tuple(case for case in cases if _latest(inventory, case, table) is None)


def _effect(before: bool | None, after: bool | None) -> UpgradeEffect:
    if before is None or after is None:
        return UpgradeEffect.UNKNOWN
    return (
        UpgradeEffect.LEAVES
        if before and after
        else UpgradeEffect.BREAKS
        if after
        else UpgradeEffect.FIXES
    )


def _known(inventory: Inventory, case: Case, table: VerdictTable) -> tuple[bool | None, str]:
    """Return whether the packages have the failure (None: not known), and how that is known or why
    not."""
    if recorded := _latest(inventory, case, table):
        has_failure = recorded.shown is True
        return (
            has_failure,
            f"{'observed' if has_failure else 'passed'} in {recorded.environment} ({recorded.device}, {recorded.date})",
        )
    findings = find(inventory, [case])
    if findings:
        return True, f"range: {findings[0].reason.removeprefix('affected: ')}"
    if unknown := unknown_packages(inventory, case):
        return None, f"no version of {' and '.join(unknown)} is known"
    return False, f"range: not in {case.affected_text()}"


def _latest(inventory: Inventory, case: Case, table: VerdictTable) -> Recorded | None:
    """Return the last result that tells something about the only package that decides, in its only
    version.

    For a release of vLLM of which no lock is known, that is a result with the packages of the day
    after the release.
    """
    package = case.affected[0].package
    name = next(
        (
            name
            for name in (VLLM if package == "vllm" else (package,))
            if name in inventory.versions
        ),
        package,
    )
    versions = inventory.versions.get(name, ())
    version = version_of(versions[0]) if len(versions) == 1 else None
    if inventory.release and unknown_packages(inventory, case):
        plain = f"vllm-{Version(inventory.release).public}"  # without overlays such as +transformers==5.23.0
        entries = [entry for entry in table.of_case(case.id) if entry.environment == plain]
    elif len(case.affected) != 1 or version is None:
        return None
    else:
        entries = table.at(case.id, name, version.public)
    telling = [entry for entry in entries if entry.shown is not None]
    return max(telling, key=lambda entry: entry.date, default=None)
