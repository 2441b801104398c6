"""Does a release still install and start with what the package index offers today, which dependency
breaks it, and which pin restores it?

An installation as a user would make it goes through stages: resolve, install, import, help, serve,
answer. Where one fails, two resolutions are compared: that of today, and that of the day after the
release. Of the packages that differ, the fewest are searched whose old versions make the failed
stage pass; then the releases of each between the two are bisected.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from ..engines.spec import EngineSpec
from ..engines.standalone import bare_session, probe_in
from ..environments import uv
from ..environments.cache import EnvironmentCache
from ..environments.index.releases import releases
from ..environments.locks import release_date, resolved_versions
from ..environments.recipes import Recipe
from ..errors import (
    FIRST_ERROR,
    BuildError,
    BuildFailure,
    ChildError,
    NotAtWork,
    Part,
    Unsupported,
    UsageError,
)
from ..history.algorithm import CandidateState, changes, next_candidate
from ..util.masking import mask
from ..util.paths import PACKAGE, writable_root
from ..util.report import Markup, Report, Section, Table
from ..util.sizes import GIB, disk_usage
from ..util.store import Store
from ..util.versions import fewest, suspects_first

if TYPE_CHECKING:
    from ..engines.server import Server
    from ..engines.session import Session
    from ..engines.target import Target

_PROBE = PACKAGE / "target_site" / "vllm_regress_target" / "installation" / "smoke.py"
_COLUMNS = ("release", "Python", "day", "fails at", "because of", "first bad", "pin", "confirmed")
_PROMPT = "One token, please"
RELEASE_BYTES = 14 * GIB
"""Room for a release: its files, and what its installation with other versions of some packages
adds."""
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


@dataclasses.dataclass(frozen=True)
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


@dataclasses.dataclass(frozen=True)
class Breakage:
    """A stage that fails today, and the packages that break it; empty if no older package restores
    it."""

    stage: Stage
    reason: str
    culprits: tuple[BlamedPackage, ...] = ()


@dataclasses.dataclass(frozen=True)
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
    pins: Mapping[str, str] = dataclasses.field(default_factory=dict)
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


@dataclasses.dataclass(frozen=True)
class Attempt:
    """Result of installing and trying a release. ``failed``: the stage that failed, or None.

    ``reason``: one line. ``text``: the full message.
    """

    failed: Stage | None = None
    reason: str = ""
    text: str = ""

    def passes(self, stage: Stage) -> bool:
        """Return whether the installation got beyond ``stage``."""
        stages = [*Stage]
        return self.failed is None or stages.index(self.failed) > stages.index(stage)


@dataclasses.dataclass(frozen=True)
class DatedRelease:
    """A release of vLLM, with the day up to which uploads count: what ``pip install`` would have
    chosen at its end."""

    version: str
    day: datetime.date
    python: str = "3.11"

    def versions(self, pins: Pins) -> dict[str, str]:
        """Return the version of each package to which the release resolves.

        Raises ``BuildError``.
        """
        return resolved_versions(requirements(self.version, pins), self.day, self.python)

    def attempt(
        self, pins: Pins, progress: Callable[[str], None], last: Stage = Stage.ANSWER
    ) -> Attempt:
        """Install the release with ``pins``, start a server on the simulated device, and request
        one token; stop after stage ``last``.

        The environment is removed afterwards. Raises ``BuildError`` if this machine or its network
        is to blame: a full disk, no index.
        """
        try:
            self.versions(pins)
        except BuildError as error:
            return _not_installed(Stage.RESOLVE, error)
        recipe = Recipe(
            f"vllm-{self.version}-as-of-{self.day}",
            requirements(self.version, pins),
            exclude_newer=self.day.isoformat(),
            python=self.python,
        )
        try:
            with _installed(recipe, progress) as python:
                return _try_stages(python, progress, last)
        except BuildError as error:
            return _not_installed(Stage.INSTALL, error)


Try = Callable[[Pins, Stage], Attempt]


def requirements(version: str, pins: Pins) -> tuple[str, ...]:
    """Return the requirements of ``pip install`` for a release with ``pins``."""
    return (f"vllm=={version}", *(f"{name}{pin}" for name, pin in sorted(pins.items())))


def diagnose(release: DatedRelease, progress: Callable[[str], None], known: Known) -> Drift:
    """Install the release as of its day; where that fails, search for the dependencies to blame,
    until everything passes or none explains it.

    What broke other releases (``known``) is tried first.
    """

    def try_pins(pins: Pins, last: Stage) -> Attempt:
        attempt = release.attempt(pins, progress, last)
        end = f"{attempt.failed} fails: {attempt.reason[:200]}" if attempt.failed else "passes"
        progress(f"{' '.join(requirements(release.version, pins))}: {end}")
        return attempt

    attempt = try_pins({}, Stage.ANSWER)
    if attempt.failed is None:
        return Drift(release.version, release.day, python=release.python)
    then, why = _versions_then(release)
    breakages: list[Breakage] = []
    pins: dict[str, str] = {}
    while attempt.failed is not None:
        culprits = _PackageSearch(release, attempt, then, pins, try_pins).culprits(known)
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


def _versions_then(release: DatedRelease) -> tuple[dict[str, str], str]:
    try:
        day = release_date("vllm", release.version) + datetime.timedelta(days=1)
        return dataclasses.replace(release, day=day).versions({}), ""
    except BuildError as error:
        if not blames_packages(error):
            raise
        return {}, str(error)


@dataclasses.dataclass(frozen=True)
class _PackageSearch:
    """The search for the packages that make a stage fail, beside those that ``pins`` already holds
    back."""

    release: DatedRelease
    failure: Attempt
    then: Mapping[str, str]
    pins: Pins
    try_pins: Try

    def culprits(self, known: Known) -> tuple[BlamedPackage, ...]:
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
                BlamedPackage(name, self.then[name], today.get(name, "")),
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
        if attempt.passes(stage):
            return CandidateState.GOOD
        return CandidateState.BAD if attempt.failed is stage else CandidateState.SKIPPED


def bisected(
    culprit: BlamedPackage, state: Callable[[str], CandidateState], first: Sequence[str] = ()
) -> BlamedPackage:
    """Which version of a package broke an old release? Return the culprit with its last good and
    first bad version. ``first``: versions to try
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


@contextmanager
def limited_downloads(limit: int) -> Iterator[Callable[[], None]]:
    """Keep downloads and installations within ``limit`` bytes. Yield a function to call before each
    release is installed.

    Downloads go to a separate cache of uv. It is emptied when the next release might not fit, and
    at the end. Raises ``UsageError`` if the limit is too small for a single release.
    """
    if limit < RELEASE_BYTES:
        raise UsageError(
            f"--disk: {limit / GIB:.0f} GiB are too few: a release may take {RELEASE_BYTES / GIB:.0f} GiB"
        )
    folder = writable_root() / uv.SWEEP_CACHE

    def make_room() -> None:
        if disk_usage(folder) > limit - RELEASE_BYTES:
            uv.empty_cache()

    with uv.own_cache(folder):
        try:
            yield make_room
        finally:
            uv.empty_cache()


def blames_packages(error: BuildError) -> bool:
    """Return whether the packages caused the error, not this machine or its network."""
    # A package that does not build is one of the failures that uv has no word for.
    return error.failure in (BuildFailure.UNRESOLVABLE, BuildFailure.OTHER)


def _not_installed(stage: Stage, error: BuildError) -> Attempt:
    """Return the failure of a stage that uv ran.

    Raises the error again unless the packages caused it.
    """
    if not blames_packages(error):
        raise error
    return Attempt(stage, _reason(str(error)), str(error))


@contextmanager
def _installed(recipe: Recipe, progress: Callable[[str], None]) -> Iterator[Path]:
    cache = EnvironmentCache()
    try:
        with cache.lease(recipe, progress=progress) as python:
            yield python
    finally:
        for environment in cache.listing():
            if environment.path == cache.place(recipe):
                cache.remove(environment)


def _try_stages(python: Path, progress: Callable[[str], None], last: Stage) -> Attempt:
    stage = Stage.IMPORT
    try:
        with bare_session(progress, device="sim") as session:
            for stage, run in _stages(session, session.target(str(python))):
                if (reason := run()) is not None:
                    return Attempt(stage, _first_line(reason), reason)
                if stage is last:
                    break
    except ChildError as error:
        stage = Stage.IMPORT if error.phase == "import" else stage
        return Attempt(stage, _cause(error), str(error))
    except (Unsupported, NotAtWork) as error:
        return Attempt(stage, _first_line(str(error)), str(error))
    return Attempt()


def _stages(session: Session, target: Target) -> Iterator[tuple[Stage, Callable[[], str | None]]]:
    """Yield each stage of an installed release with a function that runs it, and returns why it
    failed or raises that."""
    probe = probe_in(session, target, _PROBE)

    def server() -> Server:
        running: Server = session.start(
            "serve", target, EngineSpec.create(), user="drift", fresh=False
        )
        return running

    def answer() -> str | None:
        response = server().post(
            "/v1/completions", {"model": server().model, "prompt": _PROMPT, "max_tokens": 1}
        )
        return (
            None if response.is_success else mask(f"status {response.status_code}: {response.text}")
        )

    yield Stage.IMPORT, lambda: _nothing(probe("import_server"))
    yield Stage.HELP, lambda: _nothing(probe("serve_help"))
    yield Stage.SERVE, lambda: _nothing(server())
    yield Stage.ANSWER, answer


def _nothing(value: object) -> None:
    """Drop a value: the call that gave it raises if it fails."""


def _cause(error: ChildError) -> str:
    """Return the root cause in one line: of an exception, or the first error in the log of a
    process that ended."""
    return _first_line(error.parts.get(Part.EXCEPTION) or error.args[0].rpartition(FIRST_ERROR)[2])


def _reason(text: str) -> str:
    """Return in one line why uv failed: the requirement that cannot be met, or else uv's last line."""
    because = text.find("Because ")
    return _first_line(text[because:]) if because >= 0 else _last_line(text)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


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
    day = drift.day.isoformat()
    if drift.sound:
        return [(drift.version, drift.python, day, "nothing fails", "", "", "", "")]
    rows: list[tuple[str, ...]] = []
    for breakage in drift.breakages:
        reason = f"{breakage.stage}: {breakage.reason[:160]}"
        confirmed = "yes" if drift.confirmed else "no"
        for culprit in breakage.culprits:
            change = f"{culprit.package} {culprit.then} -> {culprit.today or 'absent'}"
            pin = f"{culprit.package}{culprit.pin}"
            rows.append(
                (drift.version, drift.python, day, reason, change, culprit.bad, pin, confirmed)
            )
        if not breakage.culprits:
            why = (
                "does not resolve as of its first day either"
                if drift.then
                else "fails with the packages of its first day, too"
            )
            rows.append((drift.version, drift.python, day, reason, why, "", "", ""))
    return rows
