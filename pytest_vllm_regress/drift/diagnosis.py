"""Which dependency breaks a release, the first version that does, and the pin that restores it.

Two resolutions are compared: that of today, and that of the day after the release. Of the packages that differ, the fewest are searched whose
old versions make the failed stage pass; then the releases of each between the two are bisected.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from packaging.version import Version

from ..bisection.algorithm import State, changes, next_candidate
from ..environments.index.releases import releases
from ..environments.locks import release_date
from ..errors import BuildError
from ..util.versions import fewest, suspects_first
from .installation import Attempt, Pins, Release, Stage, blames_packages

Try = Callable[[Pins, Stage], Attempt]
Known = Mapping[str, tuple[str, str]]
"""The last good and first bad version of packages that broke other releases."""


@dataclasses.dataclass(frozen=True)
class Culprit:
    """A package whose newer versions break a release. ``good`` and ``bad``: the last version that works, and the first that does not.

    ``pin`` is what a user adds to ``pip install``.
    """

    package: str
    then: str
    today: str
    good: str = ""
    bad: str = ""

    @property
    def pin(self) -> str:
        """The specifier that keeps the package below the first bad version."""
        return f"<{self.bad}" if self.bad else f"=={self.then}"


@dataclasses.dataclass(frozen=True)
class Breakage:
    """A stage that fails today, and the packages that break it; empty if no older package restores it."""

    stage: Stage
    reason: str
    culprits: tuple[Culprit, ...] = ()


@dataclasses.dataclass(frozen=True)
class Drift:
    """Diagnosis of a release: its breakages in the order in which they were found, and the pins with which every stage passes.

    ``confirmed``: the release was installed once more with ``pins`` and passed. ``then``: why the resolution of its first day fails, too.
    ``python``: the version of Python that it was installed for.
    """

    version: str
    day: datetime.date
    breakages: tuple[Breakage, ...] = ()
    pins: Mapping[str, str] = dataclasses.field(default_factory=dict)
    confirmed: bool = False
    then: str = ""
    python: str = "3.11"

    @property
    def sound(self) -> bool:
        """Whether ``pip install`` of this day gives a server that answers."""
        return not self.breakages

    def lines(self) -> Iterator[str]:
        """Yield lines for a person: what fails, because of what, and what to do."""
        if self.sound:
            yield f"vllm {self.version}: installs, starts and answers"
        for breakage in self.breakages:
            yield f"vllm {self.version}: {breakage.stage} fails: {breakage.reason[:200]}"
            for culprit in breakage.culprits:
                change = f"{culprit.package} {culprit.then} -> {culprit.today or 'absent'}"
                yield f"    because of {change}" + (f"; first bad version: {culprit.bad}" if culprit.bad else "")
            if not breakage.culprits:
                yield f"    no older package restores it{': it does not resolve as of its first day either' if self.then else ''}"
        if self.confirmed:
            pins = " ".join(f"'{name}{specifier}'" for name, specifier in sorted(self.pins.items()))
            yield f"    this works (installed and started): pip install vllm=={self.version} {pins}"


def diagnose(release: Release, progress: Callable[[str], None], known: Known) -> Drift:
    """Install the release as of its day; where that fails, search for the dependencies to blame, until everything passes or none explains it.

    What broke other releases (``known``) is tried first.
    """

    def try_pins(pins: Pins, last: Stage) -> Attempt:
        words = " ".join(release.requirements(pins))
        attempt = release.attempt(pins, progress, last)
        progress(f"{words}: {f'{attempt.failed} fails: {attempt.reason[:200]}' if attempt.failed else 'passes'}")
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
    return Drift(release.version, release.day, tuple(breakages), pins, attempt.failed is None, why, release.python)


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
    """The search for the packages that make a stage fail, beside those that ``pins`` already holds back."""

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
        suspects = sorted(suspects_first(differing, self.failure.text), key=lambda name: name not in known)
        names = fewest(suspects, lambda some: self._state(self._old(some)) is State.GOOD)
        old = self._old(names)
        return tuple(
            bisected(
                Culprit(name, self.then[name], today.get(name, "")),
                functools.partial(self._state_with, old, name),
                known.get(name, ()),
            )
            for name in names
        )

    def _state_with(self, pins: Pins, package: str, version: str) -> State:
        return self._state({**pins, package: f"=={version}"})

    def _old(self, names: Iterable[str]) -> Pins:
        return {name: f"=={self.then[name]}" for name in names}

    def _state(self, pins: Pins) -> State:
        """Return whether the stage passes with ``pins``; skipped if an earlier one fails, so that it is not reached."""
        stage = self.failure.failed
        assert stage is not None
        attempt = self.try_pins({**self.pins, **pins}, stage)
        return State.GOOD if attempt.passes(stage) else State.BAD if attempt.failed is stage else State.SKIPPED


def bisected(culprit: Culprit, state: Callable[[str], State], first: Sequence[str] = ()) -> Culprit:
    """Return the culprit with its last good and first bad version. ``first``: versions to try before the others.

    A package that today's resolution no longer has, or has in an older version, keeps the version of the first day.
    """
    low, high = Version(culprit.then), Version(culprit.today or "0")
    if high <= low:
        return dataclasses.replace(culprit, good=culprit.then)
    versions = [low, *(version for version in releases(culprit.package) if low < version < high), high]
    states = {0: State.GOOD, len(versions) - 1: State.BAD}
    for version in map(Version, first):
        if version in versions[1:-1]:
            states[versions.index(version)] = state(str(version))
    while (index := next_candidate(len(versions), states)) is not None:
        states[index] = state(str(versions[index]))
    change = changes(len(versions), states)[-1]
    return dataclasses.replace(culprit, good=str(versions[change.low]), bad=str(versions[change.high]))
