"""One target of an audit, from how the user named it to what was found."""

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
from ..util.validation import did_you_mean, shown
from .inventory import Inventory, inventory_of
from .matching import Finding, find, notes, relevant
from .package_lists import MAX_BYTES, parse_list, read_list
from .preflight import Concern, Surroundings, preflight
from .releases import Better, better, gravest_first

STDIN = "-"


@dataclasses.dataclass(frozen=True)
class Audit:
    """What was found in one target, the gravest first. ``versions``: of the packages that the cases are about; ``notes``: what could not be
    decided; ``better``: where to go from here.
    """

    source: str
    versions: dict[str, str]
    findings: tuple[Finding, ...]
    concerns: tuple[Concern, ...]
    notes: tuple[str, ...]
    ignored: tuple[str, ...]
    better: Better | None = None

    @property
    def clean(self) -> bool:
        """Nothing was found that counts."""
        return not self.findings and not any(each.counts for each in self.concerns)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "source": self.source,
            "versions": self.versions,
            "findings": [each.to_json() for each in self.findings],
            "better": self.better.to_json() if self.better else None,
            "preflight": [each.to_json() for each in self.concerns],
            "notes": list(self.notes),
            "ignored": list(self.ignored),
        }


def read_target(target: str) -> Inventory:
    """What ``target`` has: an environment's directory (or its bin/python), a directory of packages, a list of packages, or ``-``.

    It is read, whatever it is: an interpreter is started by ``started`` alone.
    """
    if target == STDIN:
        return parse_list(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input")
    path = Path(target).expanduser()
    if not os.path.exists(path):
        raise UsageError(
            f"{target}: no such file. Give an environment's directory, a list of packages, or - for standard input; "
            "an interpreter with --python"
        )
    around = path.absolute().parent.parent
    if path.parent.name == "bin" and path.name.startswith(("python", "pypy")) and is_environment(around):
        return Inventory.of(open_environment(around), target)
    if not path.is_dir():
        return read_list(path)
    if is_environment(path):
        return Inventory.of(open_environment(path.absolute()), target)
    packages = tuple(scan([path]))
    if not packages:
        raise UsageError(f"{target}: is no environment and holds no packages (*.dist-info)")
    return Inventory(target, packages)


def started(python: Path) -> Inventory:
    """What the interpreter ``python`` has, or the one in that environment's directory: it is started, isolated, and asked where it looks."""
    return inventory_of(python.expanduser().absolute(), str(python))


def audit(inventory: Inventory, cases: Sequence[Case], around: Surroundings | None, ignore: Collection[str]) -> Audit:
    """Match ``inventory`` with ``cases``; with ``around`` look at the environment itself too. Raises ``UsageError`` where there is none."""
    if around is not None and inventory.interpreter is None:
        raise UsageError(
            f"--preflight looks at an interpreter and its surroundings; {inventory.source} is a list of packages"
        )
    concerns = preflight(inventory.interpreter, around) if inventory.interpreter and around else ()
    findings = gravest_first(find(inventory, cases))
    ignored = dict.fromkeys([*(f.case.id for f in findings), *(c.id for c in concerns)])
    counted = tuple(each for each in findings if each.case.id not in ignore)
    return Audit(
        inventory.source,
        relevant(inventory, cases),
        counted,
        tuple(each for each in concerns if each.id not in ignore),
        notes(inventory, cases),
        tuple(each for each in ignored if each in ignore),
        better(counted, [each for each in cases if each.id not in ignore]),
    )


def check_ignored(ignore: Collection[str], known: Collection[str]) -> None:
    """Raise ``UsageError`` for an id to ignore that no case and no check has: it would hide nothing, by mistake."""
    for each in ignore:
        if each not in known:
            raise UsageError(
                f"--ignore {shown(each)}: no case and no preflight check has this id.{did_you_mean(each, known)}"
            )
