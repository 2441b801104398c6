"""The record of drift: what fails in a release today, because of which packages, and the pins that help."""

from __future__ import annotations

import datetime
import enum
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import Version

from ..util.report import Markup, Report, Section, Table
from ..util.store import Store

_COLUMNS = ("release", "Python", "day", "fails at", "because of", "first bad", "pin", "confirmed")


Pins = Mapping[str, str]
"""Package name to version specifier, as a user would add them to ``pip install``."""


Known = Mapping[str, tuple[str, str]]
"""The last good and first bad version of packages that broke other releases."""


class Stage(enum.StrEnum):
    """What an installation must do, in this order."""

    RESOLVE = "resolve"
    INSTALL = "install"
    IMPORT = "import"
    HELP = "help"
    SERVE = "serve"
    ANSWER = "answer"


@dataclass(frozen=True)
class BlamedPackage:
    """A package whose newer versions break a release. ``good`` and ``bad``: the last version that
    works, and the first that does not.

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


@dataclass(frozen=True)
class Breakage:
    """A stage that fails today, and the packages that break it; empty if no older package restores
    it."""

    stage: Stage
    reason: str
    culprits: tuple[BlamedPackage, ...] = ()


@dataclass(frozen=True)
class Drift:
    """Diagnosis of a release: its breakages in the order in which they were found, and the pins
    with which every stage passes.

    ``confirmed``: the release was installed once more with ``pins`` and passed. ``then``: why the
    resolution of its first day fails, too.
    ``python``: the version of Python that it was installed for.
    """

    version: str
    day: datetime.date
    breakages: tuple[Breakage, ...] = ()
    pins: Mapping[str, str] = field(default_factory=dict)
    confirmed: bool = False
    then: str = ""
    python: str = "3.11"

    @property
    def sound(self) -> bool:
        """Whether ``pip install`` on that day gave a server that answers."""
        return not self.breakages

    @property
    def command(self) -> str:
        """The installation with the pins."""
        return shlex.join(["pip", "install", *requirements(self.version, self.pins)])


def requirements(version: str, pins: Pins) -> tuple[str, ...]:
    """Return the requirements of ``pip install`` for a release with ``pins``."""
    return (f"vllm=={version}", *(f"{name}{pin}" for name, pin in sorted(pins.items())))


def open_drifts(path: Path, *, fresh: bool = False) -> Store[Drift]:
    """Return the diagnoses of releases by version, kept in a file."""
    return Store(path, Drift, what="diagnoses of releases", fresh=fresh)


def known_culprits(drifts: Iterable[Drift]) -> dict[str, tuple[str, str]]:
    """Return the packages that broke a release, with their last good and first bad version."""
    return {
        culprit.package: (culprit.good, culprit.bad)
        for drift in drifts
        for breakage in drift.breakages
        for culprit in breakage.culprits
        if culprit.bad
    }


def report(drifts: Collection[Drift]) -> Report:
    """Return what fails, because of what, and which pin restores it, newest release first."""
    ordered = sorted(drifts, key=lambda drift: Version(drift.version), reverse=True)
    sound, mended = sum(drift.sound for drift in drifts), sum(drift.confirmed for drift in drifts)
    blamed = Counter(
        name
        for drift in drifts
        for name in {c.package for breakage in drift.breakages for c in breakage.culprits}
    )
    counts = ", ".join(f"{name} {count}" for name, count in blamed.most_common())
    summary = (
        f"Of {len(drifts)} releases, {sound} pass as they are, {mended} with the pins below, "
        f"and {len(drifts) - sound - mended} do not pass."
        + (f" Releases broken by each package: {counts}." if counts else "")
    )
    table = Table(_COLUMNS, [row for drift in ordered for row in _rows(drift)])
    return Report(sections=[Section(parts=[Markup(summary), table])])


def _rows(drift: Drift) -> list[tuple[str, ...]]:
    about = (drift.version, drift.python, drift.day.isoformat())
    if drift.sound:
        return [(*about, "nothing fails", "", "", "", "")]
    confirmed = "yes" if drift.confirmed else "no"
    rows: list[tuple[str, ...]] = []
    for breakage in drift.breakages:
        reason = f"{breakage.stage}: {breakage.reason[:160]}"
        for culprit in breakage.culprits:
            change = f"{culprit.package} {culprit.then} -> {culprit.today or 'absent'}"
            pin = f"{culprit.package}{culprit.pin}"
            rows.append((*about, reason, change, culprit.bad, pin, confirmed))
        if not breakage.culprits:
            why = "fails with the packages of its first day, too"
            if drift.then:
                why = "does not resolve as of its first day either"
            rows.append((*about, reason, why, "", "", ""))
    return rows
