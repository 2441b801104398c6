"""Which release of vLLM to switch to, and what each release has: ``better`` advises, ``overview``
summarizes all releases."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from ...cases.model import Case
from ...environments.installed import VLLM
from ...environments.releases import known_releases
from ...util.report import Markup, markdown_table
from .matching import AuditMatch, find
from .package_lists import read_list
from .target import locked

_ENVIRONMENT = re.compile(r"vllm(?:-cpu)?-(\d+(?:\.\d+)*)")


@dataclass(frozen=True)
class UpgradeAdvice:
    """Which release to switch to.

    ``without``: the nearest release that has none of the failures found, preferably a later one
    (None: every release has one).
    ``earlier``: whether that release is earlier than the installed one.
    ``fewest``: the later release with the fewest of the failures found (None: no later release is
    known). ``kept``: their ids.
    ``other``: number of other documented failures of the release that is advised.
    ``distribution``: what to install, the one that is installed. ``found``: number of the failures
    found. ``workarounds``: how many of ``kept`` have one.
    """

    without: str | None
    earlier: bool
    other: int
    fewest: str | None
    kept: tuple[str, ...]
    distribution: str = "vllm"
    found: int = 0
    workarounds: int = 0

    def __str__(self) -> str:
        left = len(self.kept)
        gone = self.found - left
        if self.without and not self.earlier:
            text = f"upgrade to {self.distribution} {self.without}: all {self.found} gone"
        elif self.without:
            text = f"go back to {self.distribution} {self.without}: all {self.found} gone; no later release is without all of them"
        elif self.fewest and gone:
            ways = f"workaround for {self.workarounds}" if self.workarounds else "no workaround"
            text = f"upgrade to {self.distribution} {self.fewest}: {gone} of {self.found} in vLLM itself gone; {left} remain, {ways}"
        else:
            return "no release is without all of these"
        others = f"{self.other or 'no'} other documented failure{'' if self.other == 1 else 's'}"
        return f"{text}; {self.without or self.fewest} has {others}"


@dataclass(frozen=True)
class ReleaseSummary:
    """A release and its known failures, the gravest first.

    ``gone``: ids of the failures that the next release in the list does not have.
    """

    version: str
    findings: tuple[AuditMatch, ...]
    gone: tuple[str, ...]

    def families(self) -> dict[str, int]:
        """Return the number of failures by family, the largest first."""
        return dict(collections.Counter(f.case.family for f in self.findings).most_common())

    def to_json(self) -> dict[str, Any]:
        return {
            "vllm": self.version,
            "failures": [finding.case.id for finding in self.findings],
            "families": self.families(),
            "gone_in_next": list(self.gone),
        }


def better(findings: Sequence[AuditMatch], cases: Sequence[Case]) -> UpgradeAdvice | None:
    """Return which vLLM to switch to from an installation with ``findings``; None if no vLLM would
    change them.

    Other packages keep their versions.
    """
    of_vllm = [f for f in findings if any(part.package == "vllm" for part in f.case.affected)]
    if not of_vllm:
        return None
    build = next(name for name in VLLM if name in of_vllm[0].versions)
    current = Version(Version(of_vllm[0].versions[build]).public)
    installed = {name: version for finding in of_vllm for name, version in finding.versions.items()}

    def having(release: Version | None, candidates: Iterable[Case]) -> tuple[str, ...]:
        versions = {**installed, build: str(release)}
        return tuple(case.id for case in candidates if release and case.is_affected(versions))

    affecting = [finding.case for finding in of_vllm]
    kept = {release: having(release, affecting) for release in _candidates(cases, build)}
    later = sorted(release for release in kept if release > current)
    earlier = sorted((release for release in kept if release < current), reverse=True)
    without = next((release for release in (*later, *earlier) if not kept[release]), None)
    # min takes the nearest among equals.
    fewest = min(later, key=lambda release: len(kept[release]), default=None)
    return UpgradeAdvice(
        without=str(without) if without else None,
        earlier=without is not None and without < current,
        other=len({*having(without or fewest, cases)} - {f.case.id for f in findings}),
        fewest=str(fewest) if fewest else None,
        kept=kept[fewest] if fewest else (),
        distribution=build,
        found=len(affecting),
        workarounds=sum(
            bool(case.workaround) for case in affecting if fewest and case.id in kept[fewest]
        ),
    )


def _candidates(cases: Iterable[Case], build: str) -> tuple[Version, ...]:
    """Return the known releases of a distribution since the earliest one that a case names; of vLLM
    itself also newer releases that only cases name."""
    known, named = known_releases(build) or known_releases("vllm"), named_releases(cases)
    return (
        *(release for release in known if release >= named[0]),
        *(release for release in named if build == "vllm" and release > known[-1]),
    )


def named_releases(cases: Iterable[Case]) -> tuple[Version, ...]:
    """Return the releases of vLLM in the cases: bounds of their ranges and versions of their
    evidence environments."""
    versions = {
        Version(bound.version.removesuffix(".*"))
        for case in cases
        for part in case.affected
        if part.package == "vllm"
        for specifiers in part.alternatives
        for bound in specifiers
    }
    versions |= {
        Version(match[1])
        for case in cases
        for name in (*case.evidence.affected, *case.evidence.fixed)
        if (match := _ENVIRONMENT.match(name))
    }
    return tuple(sorted(versions))


def overview(cases: Sequence[Case], folder: Path) -> tuple[ReleaseSummary, ...]:
    """Return every release that has a lock in ``folder``, with the failures of the locked versions."""
    releases: list[ReleaseSummary] = []
    following: set[str] | None = None
    for version, lock in reversed(locked(folder).items()):
        findings = find(read_list(lock), cases)
        ids = [finding.case.id for finding in findings]
        gone = [] if following is None else [name for name in ids if name not in following]
        releases.insert(0, ReleaseSummary(version, findings, tuple(gone)))
        following = set(ids)
    return tuple(releases)


def table(releases: Sequence[ReleaseSummary]) -> str:
    """Return ``releases`` as a Markdown table."""
    rows = [
        (
            entry.version,
            str(len(entry.findings)),
            ", ".join(f"{name} {count}" for name, count in entry.families().items()) or Markup("-"),
            ", ".join(entry.gone) or Markup("-"),
        )
        for entry in releases
    ]
    header = ("vLLM", "known failures", "families", "gone in the next")
    return "\n".join(markdown_table(header, rows))
