"""Does a release still install and start with what the package index offers today, which dependency
breaks it, and which pin restores it?

An installation as a user would make it goes through stages: resolve, install, import, help, serve,
answer. Where one fails, two resolutions are compared: that of today, and that of the day after the
release. Of the packages that differ, the fewest are searched whose old versions make the failed
stage pass; then the releases of each between the two are bisected.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from ..engines.spec import EngineSpec
from ..engines.standalone import bare_session, probe_in
from ..environments import uv
from ..environments.cache import EnvironmentCache
from ..environments.locks import release_date, resolved_versions
from ..environments.recipes import Recipe
from ..environments.releases import releases
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
from ..util.sizes import GIB, disk_usage
from ..util.versions import fewest, suspects_first
from .drift_record import BlamedPackage, Breakage, Drift, Known, Pins, Stage, requirements

if TYPE_CHECKING:
    from ..engines.server import Server
    from ..engines.session import Session
    from ..engines.target import Target

_PROBE = PACKAGE / "target_site" / "vllm_regress_target" / "installation" / "smoke.py"
_PROMPT = "One token, please"
RELEASE_BYTES = 14 * GIB
"""Room for a release: its files, and what its installation with other versions of some packages
adds."""


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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

    def attempt(self, pins: Pins, progress: uv.Progress, last: Stage = Stage.ANSWER) -> Attempt:
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


def diagnose(release: DatedRelease, progress: uv.Progress, known: Known) -> Drift:
    """Install the release as of its day; where that fails, search for the dependencies to blame,
    until everything passes or none explains it.

    What broke other releases (``known``) is tried first.
    """

    def try_pins(pins: Pins, last: Stage) -> Attempt:
        attempt = release.attempt(pins, progress, last)
        end = f"{attempt.failed} fails: {attempt.reason[:200]}" if attempt.failed else "passes"
        progress(f"{' '.join(requirements(release.version, pins))}: {end}")
        return attempt

    drift = Drift(release.version, release.day, python=release.python)
    attempt = try_pins({}, Stage.ANSWER)
    if attempt.failed is None:
        return drift
    then, why = _versions_then(release)
    breakages: list[Breakage] = []
    pins: dict[str, str] = {}
    while attempt.failed is not None:
        culprits = _culprits(release, attempt, then, pins, try_pins, known)
        breakages.append(Breakage(attempt.failed, attempt.reason, culprits))
        if not culprits:
            break
        pins |= {culprit.package: culprit.pin for culprit in culprits}
        attempt = try_pins(pins, Stage.ANSWER)
    return replace(
        drift, breakages=tuple(breakages), pins=pins, confirmed=attempt.failed is None, then=why
    )


def _versions_then(release: DatedRelease) -> tuple[dict[str, str], str]:
    try:
        day = release_date("vllm", release.version) + datetime.timedelta(days=1)
        return replace(release, day=day).versions({}), ""
    except BuildError as error:
        if not blames_packages(error):
            raise
        return {}, str(error)


def _culprits(
    release: DatedRelease,
    failure: Attempt,
    then: Mapping[str, str],
    pins: Pins,
    try_pins: Try,
    known: Known,
) -> tuple[BlamedPackage, ...]:
    """Return the packages that make a stage fail, beside those that ``pins`` already holds back."""
    stage = failure.failed
    assert stage is not None

    def state(names: Iterable[str], package: str = "", version: str = "") -> CandidateState:
        """Return whether the stage passes with the old versions of some packages, and with this one
        of ``package``; skipped if an earlier stage fails, so that it is not reached."""
        versions = {name: then[name] for name in names} | ({package: version} if package else {})
        older = {name: f"=={old}" for name, old in versions.items()}
        attempt = try_pins({**pins, **older}, stage)
        if attempt.passes(stage):
            return CandidateState.GOOD
        return CandidateState.BAD if attempt.failed is stage else CandidateState.SKIPPED

    today = release.versions(pins) if stage is not Stage.RESOLVE else {}
    differing = [
        name
        for name, version in then.items()
        if today.get(name) != version and name not in pins and name != "vllm"
    ]
    suspects = sorted(suspects_first(differing, failure.text), key=lambda name: name not in known)
    names = fewest(suspects, lambda some: state(some) is CandidateState.GOOD)
    return tuple(
        bisected(
            BlamedPackage(name, then[name], today.get(name, "")),
            functools.partial(state, names, name),
            known.get(name, ()),
        )
        for name in names
    )


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
        return replace(culprit, good=culprit.then)
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
    return replace(culprit, good=str(versions[change.low]), bad=str(versions[change.high]))


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
def _installed(recipe: Recipe, progress: uv.Progress) -> Iterator[Path]:
    cache = EnvironmentCache()
    try:
        with cache.lease(recipe, progress=progress) as python:
            yield python
    finally:
        for environment in cache.listing():
            if environment.path == cache.place(recipe):
                cache.remove(environment)


def _try_stages(python: Path, progress: uv.Progress, last: Stage) -> Attempt:
    stage = Stage.IMPORT
    try:
        with bare_session(progress, device="sim") as session:
            for stage, run in _stages(session, session.target(str(python))):
                reason = run()
                if stage is Stage.ANSWER and isinstance(reason, str):
                    return Attempt(stage, _first_line(reason), reason)
                if stage is last:
                    break
    except ChildError as error:
        stage = Stage.IMPORT if error.phase == "import" else stage
        return Attempt(stage, _cause(error), str(error))
    except (Unsupported, NotAtWork) as error:
        return Attempt(stage, _first_line(str(error)), str(error))
    return Attempt()


def _stages(session: Session, target: Target) -> Iterator[tuple[Stage, Callable[[], object]]]:
    """Yield each stage of an installed release with a function that runs it. It raises why it
    failed, or (``ANSWER``) returns that."""
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

    yield Stage.IMPORT, lambda: probe("import_server")
    yield Stage.HELP, lambda: probe("serve_help")
    yield Stage.SERVE, server
    yield Stage.ANSWER, answer


def _cause(error: ChildError) -> str:
    """Return the root cause in one line: of an exception, or the first error in the log of a
    process that ended."""
    return _first_line(error.parts.get(Part.EXCEPTION) or error.args[0].rpartition(FIRST_ERROR)[2])


def _reason(text: str) -> str:
    """Return in one line why uv failed: the requirement that cannot be met, or else uv's last line."""
    because = text.find("Because ")
    return _first_line(text[because:] if because >= 0 else text.strip().rpartition("\n")[2])


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].strip()
