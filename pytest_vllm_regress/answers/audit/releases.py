"""Compare releases of vLLM by their known failures, and advise which release to switch to."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from ...cases.model import Case
from ...environments.index.releases import known_releases
from ...environments.installed import VLLM
from ...errors import UsageError
from ...util.text import markdown_cell
from ...util.validation import format_value
from ...util.versions import is_version
from .inventory import Inventory
from .matching import AuditMatch, find
from .package_lists import parse_list, read_list
from .severity import severity

_ENVIRONMENT = re.compile(r"vllm(?:-cpu)?-(\d+(?:\.\d+)*)")


@dataclasses.dataclass(frozen=True)
class UpgradeAdvice:
    """Which release to switch to.

    ``without``: the nearest release that has none of the failures found, preferably a later one
    (None: every release has one).
    ``earlier``: whether that release is earlier than the installed one.
    ``fewest``: the later release with the fewest of the failures found (None: no later release is
    known). ``kept``: their ids.
    ``other``: number of other documented failures of the release that is advised.
    """

    without: str | None
    earlier: bool
    other: int
    fewest: str | None
    kept: tuple[str, ...]

    def __str__(self) -> str:
        none = f"no {'later ' if self.without else ''}release is without all of these"
        if self.without and not self.earlier:
            text = f"vllm {self.without} is the nearest release without any of these"
        elif self.without:
            text = f"{none}; the nearest earlier one that is: vllm {self.without}"
        elif self.fewest:
            text = f"{none}; of the later ones vllm {self.fewest} has the fewest, {len(self.kept)}: {', '.join(self.kept)}"
        else:
            return none
        return f"{text} ({self.other or 'no'} other documented failure{'' if self.other == 1 else 's'})"

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Release:
    """A release and its known failures.

    ``gone``: ids of the failures that the next release in the list does not have.
    """

    version: str
    findings: tuple[AuditMatch, ...]
    gone: tuple[str, ...]

    def families(self) -> dict[str, int]:
        """Return the number of failures by family, the largest first."""
        return dict(
            collections.Counter(finding.case.family for finding in self.findings).most_common()
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``--json``."""
        ids = [finding.case.id for finding in by_severity(self.findings)]
        return {
            "vllm": self.version,
            "failures": ids,
            "families": self.families(),
            "gone_in_next": list(self.gone),
        }


def by_severity(findings: Iterable[AuditMatch]) -> tuple[AuditMatch, ...]:
    """Return the findings by severity, then by id."""
    return tuple(
        sorted(findings, key=lambda finding: (severity(finding.case).rank, finding.case.id))
    )


def better(findings: Sequence[AuditMatch], cases: Sequence[Case]) -> UpgradeAdvice | None:
    """Return which vLLM to switch to from an installation with ``findings``; None if no vLLM would
    change them.

    Other packages keep their versions.
    """
    of_vllm = [
        finding
        for finding in findings
        if any(part.package == "vllm" for part in finding.case.affected)
    ]
    if not of_vllm:
        return None
    build = next(name for name in VLLM if name in of_vllm[0].versions)
    current = Version(Version(of_vllm[0].versions[build]).public)
    installed = {name: version for finding in of_vllm for name, version in finding.versions.items()}

    def having(release: Version, candidates: Iterable[Case]) -> tuple[str, ...]:
        versions = {**installed, build: str(release)}
        return tuple(case.id for case in candidates if case.is_affected(versions))

    affecting = [finding.case for finding in of_vllm]
    kept = {release: having(release, affecting) for release in _candidates(cases)}
    later = sorted(release for release in kept if release > current)
    earlier = sorted((release for release in kept if release < current), reverse=True)
    without = next((release for release in (*later, *earlier) if not kept[release]), None)
    fewest = min(
        later, key=lambda release: len(kept[release]), default=None
    )  # the nearest among equals
    found_ids = {finding.case.id for finding in findings}
    advised = without or fewest
    return UpgradeAdvice(
        without=str(without) if without else None,
        earlier=without is not None and without < current,
        other=len(set(having(advised, cases)) - found_ids) if advised else 0,
        fewest=str(fewest) if fewest else None,
        kept=kept[fewest] if fewest else (),
    )


def _candidates(cases: Iterable[Case]) -> tuple[Version, ...]:
    """Return the known releases since the earliest one that a case names, and newer releases that
    only cases name."""
    known, named = known_releases("vllm"), named_releases(cases)
    return (
        *(release for release in known if release >= named[0]),
        *(release for release in named if release > known[-1]),
    )


def named_releases(cases: Iterable[Case]) -> tuple[Version, ...]:
    """Return the releases of vLLM in the cases: bounds of their ranges and versions of their
    evidence environments."""
    versions = set()
    for case in cases:
        for part in case.affected:
            if part.package == "vllm":
                bounds = [bound for specifiers in part.alternatives for bound in specifiers]
                versions |= {Version(bound.version.removesuffix(".*")) for bound in bounds}
        for name in (*case.evidence.affected, *case.evidence.fixed):
            if match := _ENVIRONMENT.match(name):
                versions.add(Version(match[1]))
    return tuple(sorted(versions))


def locked(folder: Path) -> Mapping[str, Path]:
    """Return the locks of plain releases in ``folder`` by version, oldest first."""
    matches = {
        path: re.fullmatch(r"vllm-(\d+(?:\.\d+)*)", path.stem) for path in folder.glob("vllm-*.txt")
    }
    locks = {match[1]: path for path, match in matches.items() if match}
    return dict(sorted(locks.items(), key=lambda item: Version(item[0])))


def release(version: str, folder: Path) -> Inventory:
    """Return what ``pip install vllm==version`` installs, from the lock in ``folder``; without a
    lock, vLLM alone.

    Raises ``UsageError`` for an invalid version.
    """
    if not is_version(version):
        raise UsageError(f"{format_value(version)}: not a version. Give one like 0.8.4")
    public = Version(Version(version).public)
    lock = next((lock for name, lock in locked(folder).items() if Version(name) == public), None)
    inventory = (
        read_list(lock) if lock else parse_list(f"vllm=={version}\n".encode(), f"vllm {version}")
    )
    return dataclasses.replace(inventory, source=f"vllm {version}", release=version)


def overview(cases: Sequence[Case], folder: Path) -> tuple[Release, ...]:
    """Return every release that has a lock in ``folder``, with the failures of the locked versions."""
    by_version = [
        (version, by_severity(find(read_list(lock), cases)))
        for version, lock in locked(folder).items()
    ]
    ids = [{finding.case.id for finding in findings} for _, findings in by_version]
    ids_of_next = [*ids[1:], *ids[-1:]]
    return tuple(
        Release(version, findings, tuple(f.case.id for f in findings if f.case.id not in next_ids))
        for (version, findings), next_ids in zip(by_version, ids_of_next, strict=True)
    )


def table(releases: Sequence[Release]) -> str:
    """Return ``releases`` as a Markdown table."""
    lines = [
        "| vLLM | known failures | families | gone in the next |",
        "| --- | ---: | --- | --- |",
    ]
    for entry in releases:
        families = ", ".join(f"{name} {count}" for name, count in entry.families().items())
        fixed_next = ", ".join(entry.gone)
        lines.append(
            f"| {markdown_cell(entry.version)} | {len(entry.findings)} | {families or '-'} | {fixed_next or '-'} |"
        )
    return "\n".join(lines)
