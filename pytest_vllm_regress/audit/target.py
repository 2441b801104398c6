"""Audit one target: read what the user named, and find its failures."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ..cases.model import Case
from ..environments.installed import is_environment, open_environment, scan
from ..errors import UsageError
from ..util.validation import did_you_mean, format_value
from .boundaries import observation
from .inventory import Inventory, inventory_of
from .matching import Finding, find, notes, relevant
from .package_lists import MAX_BYTES, parse_list, read_list
from .preflight import Concern, Host, preflight
from .releases import UpgradeAdvice, better, by_severity
from .verdict_table import read_table

STDIN = "-"


@dataclasses.dataclass(frozen=True)
class Audit:
    """Findings in one target, gravest first.

    ``versions``: of the packages that the cases are about.
    ``concerns``: from the preflight.
    ``notes``: what could not be decided.
    ``ignored``: ids that were found and do not count.
    ``better``: which release to switch to.
    """

    source: str
    versions: dict[str, str]
    findings: tuple[Finding, ...]
    concerns: tuple[Concern, ...]
    notes: tuple[str, ...]
    ignored: tuple[str, ...]
    better: UpgradeAdvice | None = None

    @property
    def clean(self) -> bool:
        """Whether there are no findings and no concerns that count."""
        return not self.findings and not any(concern.counts for concern in self.concerns)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        return {
            "source": self.source,
            "versions": self.versions,
            "findings": [finding.to_json() for finding in self.findings],
            "better": self.better.to_json() if self.better else None,
            "preflight": [concern.to_json() for concern in self.concerns],
            "notes": list(self.notes),
            "ignored": list(self.ignored),
        }


def read_target(target: str) -> Inventory:
    """Read an environment's directory (or its bin/python), a directory of packages, a list of packages, or standard input (``-``).

    Nothing is started; ``read_interpreter`` starts an interpreter.
    """
    if target == STDIN:
        return parse_list(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input")
    path = Path(target).expanduser()
    if not os.path.exists(path):
        raise UsageError(
            f"{target}: no such file. Give an environment's directory, a list of packages, or - for standard input; "
            "an interpreter with --python"
        )
    environment = path.absolute().parent.parent
    if path.parent.name == "bin" and path.name.startswith(("python", "pypy")) and is_environment(environment):
        return Inventory.of(open_environment(environment), target)
    if not path.is_dir():
        return read_list(path)
    if is_environment(path):
        return Inventory.of(open_environment(path.absolute()), target)
    packages = tuple(scan([path]))
    if not packages:
        raise UsageError(f"{target}: is not an environment and contains no packages (*.dist-info)")
    return Inventory(target, packages)


def read_interpreter(python: Path) -> Inventory:
    """Start the interpreter ``python`` (or that of an environment's directory) in isolated mode, ask for its path, and read its packages."""
    return inventory_of(python.expanduser().absolute(), str(python))


def audit(inventory: Inventory, cases: Sequence[Case], host: Host | None, ignore: Collection[str]) -> Audit:
    """Match ``inventory`` with ``cases``. With ``host`` also run the preflight, which raises ``UsageError`` for a mere list of packages."""
    if host is not None and inventory.interpreter is None:
        raise UsageError(f"--preflight checks an interpreter and its machine; {inventory.source} is a list of packages")
    concerns = preflight(inventory.interpreter, host) if inventory.interpreter and host else ()
    findings = with_observations(by_severity(find(inventory, cases)))
    all_ids = dict.fromkeys([*(f.case.id for f in findings), *(c.id for c in concerns)])
    counted = tuple(finding for finding in findings if finding.case.id not in ignore)
    return Audit(
        inventory.source,
        relevant(inventory, cases),
        counted,
        tuple(concern for concern in concerns if concern.id not in ignore),
        notes(inventory, cases),
        tuple(found_id for found_id in all_ids if found_id in ignore),
        better(counted, [case for case in cases if case.id not in ignore]),
    )


def with_observations(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings, each with where its failure was observed."""
    table = read_table([finding.case for finding in findings])
    return tuple(
        dataclasses.replace(finding, observed=observation(finding.case, finding.versions, table))
        for finding in findings
    )


def check_ignored(ignore: Collection[str], known: Collection[str]) -> None:
    """Raise ``UsageError`` for an id that no case and no check has: it is probably a typo."""
    for ignored_id in ignore:
        if ignored_id not in known:
            raise UsageError(
                f"--ignore {format_value(ignored_id)}: no case and no preflight check has this id.{did_you_mean(ignored_id, known)}"
            )
