"""Releases of vLLM against all cases: which has how many of the known failures, and where to go from one."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..cases.model import Case
from ..environments.installed import VLLM
from ..errors import UsageError
from ..util.validation import shown
from ..util.versions import is_version
from .inventory import Inventory
from .matching import Finding, find
from .package_lists import parse_list, read_list
from .severity import severity

_ENVIRONMENT = re.compile(r"vllm(?:-cpu)?-(\d+(?:\.\d+)*)")


@dataclasses.dataclass(frozen=True)
class Better:
    """Where to go from an installation. ``without``: the nearest release that has none of what was found, a later one where there is one.

    ``earlier``: it is none. ``other``: failures of another kind that ``without`` has. ``fewest``: the later release with the fewest of what was
    found, ``kept``: their ids; None where no later release is known.
    """

    without: str | None
    earlier: bool
    other: int
    fewest: str | None
    kept: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Release:
    """One release and its known failures; ``gone``: ids of those that the next release in the list does not have."""

    version: str
    findings: tuple[Finding, ...]
    gone: tuple[str, ...]

    def families(self) -> dict[str, int]:
        """How many failures of each family, the most first."""
        return dict(collections.Counter(each.case.family for each in self.findings).most_common())

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        ids = [each.case.id for each in gravest_first(self.findings)]
        return {"vllm": self.version, "failures": ids, "families": self.families(), "gone_in_next": list(self.gone)}


def gravest_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """By severity, then by id."""
    return tuple(sorted(findings, key=lambda each: (severity(each.case).rank, each.case.id)))


def better(findings: Sequence[Finding], cases: Sequence[Case]) -> Better | None:
    """Where to go from the installation that has ``findings``. None where another vLLM changes none of them.

    Releases are those that ranges and evidence of the cases name; other packages stay as they are.
    """
    mine = [each for each in findings if any(part.package == "vllm" for part in each.case.affected)]
    if not mine:
        return None
    build = next(name for name in VLLM if name in mine[0].versions)
    here = Version(Version(mine[0].versions[build]).public)

    def has(case: Case, release: Version) -> bool:
        return bool(case.is_affected({**installed, build: str(release)}))

    installed = {name: version for each in mine for name, version in each.versions.items()}
    kept = {
        release: tuple(each.case.id for each in mine if has(each.case, release)) for release in named_releases(cases)
    }
    later = sorted(release for release in kept if release > here)
    earlier = sorted((release for release in kept if release < here), reverse=True)
    without = next((release for release in (*later, *earlier) if not kept[release]), None)
    fewest = min(later, key=lambda release: len(kept[release]), default=None)  # of equals the first: the nearest
    found = {each.case.id for each in findings}
    return Better(
        without=str(without) if without else None,
        earlier=without is not None and without < here,
        other=sum(case.id not in found and has(case, without) for case in cases) if without else 0,
        fewest=str(fewest) if fewest else None,
        kept=kept[fewest] if fewest else (),
    )


def named_releases(cases: Iterable[Case]) -> tuple[Version, ...]:
    """The releases of vLLM that the cases know: bounds of their ranges and versions of their evidence environments."""
    found = set()
    for case in cases:
        for part in case.affected:
            if part.package == "vllm":
                found |= {Version(each.version.removesuffix(".*")) for each in SpecifierSet(part.specifier)}
        for name in (*case.evidence.affected, *case.evidence.fixed):
            if match := _ENVIRONMENT.match(name):
                found.add(Version(match[1]))
    return tuple(sorted(found))


def locked(folder: Path) -> Mapping[str, Path]:
    """Locks of plain releases below ``folder`` by their version, the oldest first."""
    named = {path: re.fullmatch(r"vllm-(\d+(?:\.\d+)*)", path.stem) for path in folder.glob("vllm-*.txt")}
    found = {match[1]: path for path, match in named.items() if match}
    return dict(sorted(found.items(), key=lambda each: Version(each[0])))


def release(version: str, folder: Path) -> Inventory:
    """What ``pip install vllm==version`` brings, as far as a lock in ``folder`` tells it; else vLLM alone.

    Raises ``UsageError`` for what is no version.
    """
    if not is_version(version):
        raise UsageError(f"--vllm {shown(version)}: not a version. Give one as 0.8.4")
    lock = locked(folder).get(version)
    found = read_list(lock) if lock else parse_list(f"vllm=={version}\n".encode(), f"vllm {version}")
    return dataclasses.replace(found, source=f"vllm {version}")


def overview(cases: Sequence[Case], folder: Path) -> tuple[Release, ...]:
    """Every release that has a lock in ``folder``, with its dependencies as the lock has them."""
    found = [(version, gravest_first(find(read_list(lock), cases))) for version, lock in locked(folder).items()]
    later = [{each.case.id for each in findings} for _, findings in found[1:]]
    return tuple(
        Release(version, findings, tuple(each.case.id for each in findings if each.case.id not in after))
        for (version, findings), after in zip(found, [*later, {each.case.id for each in found[-1][1]}], strict=True)
    )


def table(releases: Sequence[Release]) -> str:
    """``releases`` as a Markdown table."""
    lines = ["| vLLM | known failures | families | gone in the next |", "| --- | ---: | --- | --- |"]
    for each in releases:
        families = ", ".join(f"{name} {count}" for name, count in each.families().items())
        lines.append(f"| {each.version} | {len(each.findings)} | {families or '-'} | {', '.join(each.gone) or '-'} |")
    return "\n".join(lines)
