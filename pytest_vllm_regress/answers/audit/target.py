"""Audit one target: read what the user named, and find its failures."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from ...cases.model import Case
from ...environments.installed import VLLM, is_environment, open_environment, scan
from ...environments.recipes import find_file, load
from ...errors import UsageError
from ...util.files import expand_home
from ...util.validation import did_you_mean, format_value
from ...util.versions import is_version, requirement_of, version_of
from ..deployments.configuration import Deployment
from ..deployments.relevance import Reach, Relevance, relevance
from .boundaries import observation
from .inventory import Inventory, inventory_of
from .matching import AuditMatch, can_show, find, notes, relevant
from .package_lists import MAX_BYTES, applies, parse_list, read_list
from .releases import UpgradeAdvice, better, by_severity, release
from .verdict_table import read_table

if TYPE_CHECKING:
    from .preflight import Concern, Host

STDIN = "-"
ALLOWED = (
    "an environment's directory, a list of packages, a requirement such as vllm==0.8.4, or - for standard input; "
    "an interpreter with --python"
)


@dataclasses.dataclass(frozen=True)
class Audit:
    """Findings in one target, gravest first.

    ``versions``: of the packages that the cases are about.
    ``concerns``: from the preflight.
    ``notes``: what could not be decided.
    ``ignored``: ids that were found and do not count.
    ``better``: which release to switch to.
    ``relevance``: by id, whether a deployment can show the failure; empty if none was given.
    """

    source: str
    versions: dict[str, str]
    findings: tuple[AuditMatch, ...]
    concerns: tuple[Concern, ...]
    notes: tuple[str, ...]
    ignored: tuple[str, ...]
    better: UpgradeAdvice | None = None
    relevance: Mapping[str, Relevance] = dataclasses.field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether there are no findings that the deployment can show, and no concerns that count."""
        return not self.counted and not any(concern.counts for concern in self.concerns)

    @property
    def counted(self) -> tuple[AuditMatch, ...]:
        """The findings without those that the deployment cannot show."""
        return tuple(
            finding
            for finding in self.findings
            if self.reach_of(finding) is not Reach.NOT_REACHABLE
        )

    def reach_of(self, finding: AuditMatch) -> Reach:
        """Return whether the deployment can show the failure; unknown without a deployment."""
        answer = self.relevance.get(finding.case.id)
        return answer.reach if answer else Reach.UNKNOWN

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        return {
            "source": self.source,
            "versions": self.versions,
            "findings": [
                {**finding.to_json(), **self._relevance_of(finding)} for finding in self.findings
            ],
            "better": self.better.to_json() if self.better else None,
            "preflight": [concern.to_json() for concern in self.concerns],
            "notes": list(self.notes),
            "ignored": list(self.ignored),
        }

    def _relevance_of(self, finding: AuditMatch) -> dict[str, Any]:
        answer = self.relevance.get(finding.case.id)
        return (
            {"relevance": {"reach": answer.reach.value, "reason": answer.reason}} if answer else {}
        )


def read_target(target: str, allowed: str = ALLOWED) -> Inventory:
    """Read an environment's directory (or its bin/python), a directory or list of packages, a
    pinned requirement, or standard input (``-``).

    Nothing is started; ``read_interpreter`` starts an interpreter. ``allowed``: the valid targets,
    for the message about a missing file.
    """
    if target == STDIN:
        return parse_list(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input")
    path = expand_home(target)
    if not os.path.exists(path):
        if pinned := _pinned(target):
            return pinned
        requirement = requirement_of(target)
        names_vllm = requirement is not None and canonicalize_name(requirement.name) in VLLM
        if names_vllm or re.match(r"[\w.-]+(\[[\w.,-]*\])?\s*[=<>!~]", target):
            raise UsageError(
                f"{target}: is neither a file nor an exact version. Give a version such as vllm==0.8.4"
            )
        raise UsageError(f"{target}: no such file. Give {allowed}")
    environment = path.absolute().parent.parent
    if (
        path.parent.name == "bin"
        and path.name.startswith(("python", "pypy"))
        and is_environment(environment)
    ):
        return Inventory.of(open_environment(environment), target)
    if not path.is_dir():
        return read_list(path)
    if is_environment(path):
        return Inventory.of(open_environment(path.absolute()), target)
    packages = tuple(scan([path]))
    if not packages:
        raise UsageError(f"{target}: is not an environment and contains no packages (*.dist-info)")
    return Inventory(target, packages)


def read_interpreter(python: Path, cases: Sequence[Case]) -> Inventory:
    """Start the interpreter ``python`` (or that of an environment's directory) in isolated mode,
    ask for its path, and read its packages.

    Raises ``UsageError`` if it has the packages of no case, so that an audit would prove nothing.
    """
    inventory = inventory_of(expand_home(python).absolute(), str(python))
    if not can_show(inventory, cases):
        raise UsageError(
            f"{python} has no vLLM, so that the audit would prove nothing. Name what has it: an interpreter (--env PATH), "
            "a version (vllm==0.8.4), a lock file or a list of packages"
        )
    return inventory


def _pinned(target: str) -> Inventory | None:
    """Return the packages of ``name==version``; for a release of vLLM with those of its lock, if
    there is one.

    Raises ``UsageError`` if the version is none, or a marker excludes every machine that could run
    vLLM.
    """
    requirement = requirement_of(target)
    pins = list(requirement.specifier) if requirement is not None else []
    if (
        requirement is None
        or len(pins) != 1
        or pins[0].operator not in ("==", "===")
        or "*" in pins[0].version
    ):
        return None
    version = pins[0].version
    if canonicalize_name(requirement.name) == "vllm" and not is_version(version):
        raise UsageError(
            f"{target}: {format_value(version)} is not a version. Give one like vllm==0.8.4"
        )
    if not applies(requirement):
        raise UsageError(
            f"{target}: its marker holds for no Python on Linux, so there is nothing to check. Give a requirement that applies"
        )
    if canonicalize_name(requirement.name) == "vllm":
        return dataclasses.replace(release(version, load(find_file()).locks), source=target)
    return parse_list(f"{requirement.name}=={version}\n".encode(), target)


def audit(
    inventory: Inventory,
    cases: Sequence[Case],
    host: Host | None,
    ignore: Collection[str],
    deployments: Sequence[Deployment] = (),
) -> Audit:
    """Match ``inventory`` with ``cases``, and rank the findings by what ``deployments`` can show,
    if there are any.

    With ``host`` also run the preflight, which raises ``UsageError`` for a mere list of packages.
    """
    concerns = _preflight(inventory, host) if host is not None else ()
    findings = with_observations(by_severity(find(inventory, cases)))
    all_ids = dict.fromkeys([*(f.case.id for f in findings), *(c.id for c in concerns)])
    result = Audit(
        inventory.source,
        relevant(inventory, cases),
        tuple(finding for finding in findings if finding.case.id not in ignore),
        tuple(concern for concern in concerns if concern.id not in ignore),
        (*notes(inventory, cases), *_notes_on(deployments, inventory)),
        tuple(found_id for found_id in all_ids if found_id in ignore),
    )
    if deployments:
        answers = {
            finding.case.id: relevance(finding.case, finding.versions, deployments)
            for finding in result.findings
        }
        result = dataclasses.replace(result, relevance=answers)
    ranked = tuple(sorted(result.findings, key=lambda finding: result.reach_of(finding).rank))
    advice = better(result.counted, [case for case in cases if case.id not in ignore])
    return dataclasses.replace(result, findings=ranked, better=advice)


def _notes_on(deployments: Sequence[Deployment], inventory: Inventory) -> Iterator[str]:
    installed = [
        version
        for name in VLLM
        for version in map(version_of, inventory.versions.get(name, ()))
        if version
    ]
    for place in deployments:
        yield from (f"{place.source}: {note}" for note in place.notes)
        if (
            place.release
            and installed
            and Version(place.release) not in {Version(version.public) for version in installed}
        ):
            yield f"{place.source}: the image has vLLM {place.release}, but the audit is of {inventory.source}"


def _preflight(inventory: Inventory, host: Host) -> tuple[Concern, ...]:
    from .preflight import preflight

    if inventory.interpreter is None:
        raise UsageError(
            f"--preflight checks an interpreter and its machine; {inventory.source} is a list of packages"
        )
    return preflight(inventory.interpreter, host)


def with_observations(findings: Sequence[AuditMatch]) -> tuple[AuditMatch, ...]:
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
