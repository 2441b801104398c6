"""Which dependency breaks a release, the first version that does, and the pin that restores it.

Two resolutions are compared: that of today, and that of the day after the release. Of the packages
that differ, the fewest are searched whose old versions make the failed stage pass; then the
releases of each between the two are bisected.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

from packaging.version import Version

from ...environments.index.releases import releases
from ...environments.locks import release_date
from ...errors import BuildError
from ...history.algorithm import CandidateState, changes, next_candidate
from ...util.versions import fewest, suspects_first
from .installation import Attempt, Pins, Release, blames_packages
from .model import Breakage, Culprit, Drift, Stage

Try = Callable[[Pins, Stage], Attempt]
Known = Mapping[str, tuple[str, str]]
"""The last good and first bad version of packages that broke other releases."""


def diagnose(release: Release, progress: Callable[[str], None], known: Known) -> Drift:
    """Install the release as of its day; where that fails, search for the dependencies to blame,
    until everything passes or none explains it.

    What broke other releases (``known``) is tried first.
    """

    def try_pins(pins: Pins, last: Stage) -> Attempt:
        words = " ".join(release.requirements(pins))
        attempt = release.attempt(pins, progress, last)
        progress(
            f"{words}: {f'{attempt.failed} fails: {attempt.reason[:200]}' if attempt.failed else 'passes'}"
        )
        return attempt

    attempt = try_pins({}, Stage.ANSWER)
    if attempt.failed is None:
        return Drift(release.version, release.day, python=release.python)
    then, why = _versions_then(release)
    breakages: list[Breakage] = []
    pins: dict[str, str] = {}
    while attempt.failed is not None:
        culprits = _Search(release, attempt, then, pins, try_pins).culprits(known)
        breakages.append(Breakage(attempt.failed, attempt.reason, culprits))
        if not culprits:
            break
        pins |= {culprit.package: culprit.pin for culprit in culprits}
        attempt = try_pins(pins, Stage.ANSWER)
    return Drift(
        release.version,
        release.day,
        tuple(breakages),
        pins,
        attempt.failed is None,
        why,
        release.python,
    )


def _versions_then(release: Release) -> tuple[dict[str, str], str]:
    try:
        day = release_date("vllm", release.version) + datetime.timedelta(days=1)
        return dataclasses.replace(release, day=day).versions({}), ""
    except BuildError as error:
        if not blames_packages(error):
            raise
        return {}, str(error)


@dataclasses.dataclass(frozen=True)
class _Search:
    """The search for the packages that make a stage fail, beside those that ``pins`` already holds
    back."""

    release: Release
    failure: Attempt
    then: Mapping[str, str]
    pins: Pins
    try_pins: Try

    def culprits(self, known: Known) -> tuple[Culprit, ...]:
        today = self.release.versions(self.pins) if self.failure.failed is not Stage.RESOLVE else {}
        differing = [
            name
            for name, version in self.then.items()
            if today.get(name) != version and name not in self.pins and name != "vllm"
        ]
        suspects = sorted(
            suspects_first(differing, self.failure.text), key=lambda name: name not in known
        )
        names = fewest(suspects, lambda some: self._state(self._old(some)) is CandidateState.GOOD)
        old = self._old(names)
        return tuple(
            bisected(
                Culprit(name, self.then[name], today.get(name, "")),
                functools.partial(self._state_with, old, name),
                known.get(name, ()),
            )
            for name in names
        )

    def _state_with(self, pins: Pins, package: str, version: str) -> CandidateState:
        return self._state({**pins, package: f"=={version}"})

    def _old(self, names: Iterable[str]) -> Pins:
        return {name: f"=={self.then[name]}" for name in names}

    def _state(self, pins: Pins) -> CandidateState:
        """Return whether the stage passes with ``pins``; skipped if an earlier one fails, so that
        it is not reached."""
        stage = self.failure.failed
        assert stage is not None
        attempt = self.try_pins({**self.pins, **pins}, stage)
        return (
            CandidateState.GOOD
            if attempt.passes(stage)
            else CandidateState.BAD
            if attempt.failed is stage
            else CandidateState.SKIPPED
        )


def bisected(
    culprit: Culprit, state: Callable[[str], CandidateState], first: Sequence[str] = ()
) -> Culprit:
    """Return the culprit with its last good and first bad version. ``first``: versions to try
    before the others.

    A package that today's resolution no longer has, or has in an older version, keeps the version
    of the first day.
    """
    low, high = Version(culprit.then), Version(culprit.today or "0")
    if high <= low:
        return dataclasses.replace(culprit, good=culprit.then)
    versions = [
        low,
        *(version for version in releases(culprit.package) if low < version < high),
        high,
    ]
    states = {0: CandidateState.GOOD, len(versions) - 1: CandidateState.BAD}
    for version in map(Version, first):
        if version in versions[1:-1]:
            states[versions.index(version)] = state(str(version))
    while (index := next_candidate(len(versions), states)) is not None:
        states[index] = state(str(versions[index]))
    change = changes(len(versions), states)[-1]
    return dataclasses.replace(
        culprit, good=str(versions[change.low]), bad=str(versions[change.high])
    )
