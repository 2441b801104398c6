"""Find new releases and plan which cases run on them, and in which environments.

Pure: lists of releases are arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from packaging.version import Version

from ...cases.model import Case
from ...environments.installed import GRAMMARS
from ...runner.batch import Batch

VLLM = "vllm"
Listed = Mapping[str, Sequence[Version]]
"""Stable releases on the index by package, oldest first."""


@dataclasses.dataclass(frozen=True)
class Release:
    """A release of vLLM or of a grammar library."""

    package: str
    version: Version

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


@dataclasses.dataclass(frozen=True)
class Look:
    """Cases that run because of a release, and their environment."""

    release: Release
    environment: str
    cases: tuple[Case, ...]

    @property
    def batch(self) -> Batch:
        """The same for the runner. No case has a role there: the ranges say what is expected."""
        return Batch(self.environment, self.cases, {})


def watched_packages(cases: Sequence[Case]) -> tuple[str, ...]:
    """Return the packages whose releases concern these cases: vLLM, and each grammar library that a
    case is about."""
    named = {affected.package for case in cases for affected in case.affected}
    return (VLLM, *(package for package in GRAMMARS if package in named))


def new_releases(
    listed: Listed, known: Listed, seen: Mapping[str, Sequence[str]]
) -> tuple[Release, ...]:
    """Return the listed releases that are neither known to this package nor seen in an earlier
    look."""
    return tuple(
        Release(package, version)
        for package, versions in listed.items()
        for version in versions
        if version not in known.get(package, ()) and str(version) not in seen.get(package, ())
    )


def plan(news: Sequence[Release], cases: Sequence[Case], newest_vllm: Version) -> tuple[Look, ...]:
    """Return what to run: on a release of vLLM all cases, on a release of a grammar library the
    cases about that library."""
    looks: dict[tuple[Release, str], list[Case]] = {}
    for release in news:
        for case in cases:
            if release.package == VLLM or release.package in {
                affected.package for affected in case.affected
            }:
                looks.setdefault((release, environment_of(case, release, newest_vllm)), []).append(
                    case
                )
    return tuple(Look(release, name, tuple(chosen)) for (release, name), chosen in looks.items())


def environment_of(case: Case, release: Release, newest_vllm: Version) -> str:
    """Return the environment in which a case runs on a release.

    A library stands alone if the case's evidence has it alone (``xgrammar-0.1.28+torch==2.13.0``),
    else it replaces the one that the newest vLLM chose.
    """
    if release.package == VLLM:
        return f"vllm-{release.version}"
    for name in (*case.evidence.fixed, *case.evidence.affected):
        base, plus, others = name.partition("+")
        if base.startswith(f"{release.package}-"):
            return f"{release.package}-{release.version}{plus}{others}"
    return f"vllm-{newest_vllm}+{release.package}=={release.version}"
