"""An installation as a user would make it today, and how far it gets: resolve, install, import,
help, serve, answer."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...engines.spec import EngineSpec
from ...engines.standalone import bare_session, probe_in
from ...environments import uv
from ...environments.cache import EnvironmentCache
from ...environments.locks import resolved_versions
from ...environments.recipes import Recipe
from ...errors import (
    FIRST_ERROR,
    BuildError,
    BuildFailure,
    ChildError,
    NotAtWork,
    Part,
    Unsupported,
    UsageError,
)
from ...util.masking import mask
from ...util.paths import PACKAGE, writable_root
from ...util.sizes import GIB, disk_usage
from .model import Stage

if TYPE_CHECKING:
    from ...engines.server import Server
    from ...engines.session import Session
    from ...engines.target import Target

_PROBE = PACKAGE / "target_site" / "vllm_regress_target" / "installation" / "smoke.py"
_PROMPT = "One token, please"
RELEASE_BYTES = 14 * GIB
"""Room for a release: its files, and what its installation with other versions of some packages
adds."""
Pins = Mapping[str, str]
"""Package name to version specifier, as a user would add them to ``pip install``."""


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
class Release:
    """A release of vLLM, with the day up to which uploads count: what ``pip install`` would have
    chosen at its end."""

    version: str
    day: datetime.date
    python: str = "3.11"

    def requirements(self, pins: Pins) -> tuple[str, ...]:
        """Return the requirements of ``pip install`` for this release with ``pins``."""
        return (
            f"vllm=={self.version}",
            *(f"{name}{specifier}" for name, specifier in sorted(pins.items())),
        )

    def versions(self, pins: Pins) -> dict[str, str]:
        """Return the version of each package to which the release resolves.

        Raises ``BuildError``.
        """
        return resolved_versions(self.requirements(pins), self.day, self.python)

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
            self.requirements(pins),
            exclude_newer=self.day.isoformat(),
            python=self.python,
        )
        try:
            with _installed(recipe, progress) as python:
                return _try_stages(python, progress, last)
        except BuildError as error:
            return _not_installed(Stage.INSTALL, error)


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
        return session.server(target, EngineSpec.create(), user="drift", fresh=False)

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
