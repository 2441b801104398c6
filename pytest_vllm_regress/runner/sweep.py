"""A sweep: cases over many releases on one machine, whose environments are built, used and removed
within a limit of disk space.

Environments of one torch follow each other, because they share most of their files: uv links the
files of an environment to those of its own cache, so removing an environment frees only what no
other one and uv's cache has. Sweeps therefore have a uv cache of their own, which counts and which
they may empty. It is emptied at the end; what a killed sweep has left counts in the next one.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ..environments import uv
from ..environments.cache import EnvironmentCache, limit_of_user
from ..environments.downloads import DISK_FACTOR, CarefulBuilds, Contents, contents
from ..environments.names import resolve
from ..errors import BuildError, UsageError
from ..util.sizes import GIB, disk_usage
from .progress import Say

UNKNOWN_BYTES = 12 * GIB
"""Assumed size on disk of an environment whose files have no known size."""
LOOKUPS = 8
"""Resolutions at a time: they mostly wait for the index."""


@dataclass(frozen=True)
class SweptEnvironment:
    """An environment of a sweep.

    ``torch``: the stack that it shares files with; ``added``: estimated bytes that it adds to those
    before it.
    """

    name: str
    contents: Contents
    torch: str
    added: int

    @property
    def size(self) -> int:
        """Estimated bytes of the environment alone."""
        return _bytes(self.contents, set())

    @property
    def notes(self) -> str:
        """Remarks about its release, such as that it was yanked."""
        post = "post-release" if ".post" in self.name else ""
        return ", ".join(filter(None, (post, "yanked" if self.contents.yanked else "")))


def plan_sweep(
    names: Sequence[str], look_up: Callable[[str], Contents] = lambda name: contents(resolve(name))
) -> tuple[SweptEnvironment, ...]:
    """Return the environments in the order in which they are run: by torch, the one of the first
    environment first, each from old to new.

    ``names``: oldest first. One whose torch is unknown goes with the one before it.
    """
    with ThreadPoolExecutor(LOOKUPS, "look-up") as pool:
        contents_by_name = dict(zip(names, pool.map(look_up, names), strict=True))
    stacks: dict[str, list[str]] = {}
    torch = ""
    for name in names:
        torch = contents_by_name[name].torch or torch
        stacks.setdefault(torch, []).append(name)
    planned = []
    for torch, members in stacks.items():
        present: set[str] = set()
        for name in members:
            planned.append(
                SweptEnvironment(
                    name, contents_by_name[name], torch, _bytes(contents_by_name[name], present)
                )
            )
            present |= set(contents_by_name[name].files)
    return tuple(planned)


def _bytes(wanted: Contents, present: Iterable[str]) -> int:
    if not wanted.files:
        return UNKNOWN_BYTES
    return int(
        DISK_FACTOR * sum(size for file, size in wanted.files.items() if file not in present)
    )


def sweep_cache() -> EnvironmentCache:
    """Return the user's cache without its default limit, which would remove environments that are
    not part of the sweep."""
    return EnvironmentCache(limit_bytes=limit_of_user() or sys.maxsize)


@dataclass
class DiskBudget:
    """How does ``matrix --releases`` keep to its disk limit? Builds environments so that they and
    uv's cache in ``downloads`` take at most
    ``limit`` bytes.

    An environment is leased from its build until ``release``. When there is no room for the next
    one, those that are done are removed, then those that come last, then uv's cache; if that is not
    enough, the build waits until one that is in use is released. Environments that are not part of
    the sweep neither count nor are removed. ``used`` measures folders.
    """

    limit: int
    planned: Sequence[SweptEnvironment]
    cache: EnvironmentCache
    downloads: Path
    say: Say
    used: Callable[..., int] = disk_usage

    def __post_init__(self) -> None:
        self._planned = {environment.name: environment for environment in self.planned}
        self._leases: dict[str, contextlib.ExitStack] = {}
        self._done: list[str] = []
        self._changed = threading.Condition()
        self._builds = CarefulBuilds(self.cache)

    def check(self) -> None:
        """Raise ``UsageError`` if an environment is larger than the limit, or the disk has less
        room than that."""
        largest = max(self._planned.values(), key=lambda environment: environment.size)
        if largest.size > self.limit:
            raise UsageError(
                f"--disk: {self.limit / GIB:.0f} GiB are too few: {largest.name} takes about {largest.size / GIB:.0f} GiB"
            )
        place = next(
            folder for folder in (self.cache.root, *self.cache.root.parents) if folder.exists()
        )
        room = shutil.disk_usage(place).free + self._size()
        if room < self.limit:
            raise UsageError(
                f"--disk: the sweep may take {self.limit / GIB:.0f} GiB, but {place} has room for {room / GIB:.0f} GiB"
            )

    @contextlib.contextmanager
    def opened(self) -> Iterator[DiskBudget]:
        """Make ``downloads`` uv's cache while the context is open.

        At its end, give up all leases and empty that cache.
        """
        with uv.own_cache(self.downloads):
            try:
                yield self
            finally:
                for name in list(self._leases):
                    self._leases.pop(name).close()
                if self.downloads.exists():
                    try:
                        uv.empty_cache()
                    except (BuildError, OSError) as error:  # the sweep's results must not be lost
                        self.say(f"{self.downloads} is left, and counts in the next sweep: {error}")

    def build(self, name: str) -> None:
        """Build the environment, when there is room for it, and keep it until ``release``.

        Raises ``BuildError``, and ``KeyboardInterrupt`` when the build is cancelled
        (``uv.cancelled_by``), also while it waits for room.
        """
        with self._changed:
            while not self._make_room(name):
                while not self._changed.wait(uv.TICK_S):
                    uv.check_cancelled()
        with contextlib.ExitStack() as lease:
            lease.enter_context(self._builds.lease(resolve(name), self.say))
            with self._changed:
                self._leases[name] = lease.pop_all()

    def release(self, name: str) -> None:
        """Allow the environment to be removed."""
        with self._changed:
            lease = self._leases.pop(name, None)
            if lease is not None:
                lease.close()
            self._done.append(name)
            self._changed.notify_all()

    def _make_room(self, name: str) -> bool:
        """Remove what may be removed until the environment fits.

        Return False if one that is in use must end first.
        """
        if self.cache.built(resolve(name)) is not None or self._fits(name):
            return True
        for removable in self._removable(name):
            if self._remove(removable) and self._fits(name):
                return True
        if self.downloads.exists():
            self.say(
                f"no room for {name} in {self.limit / GIB:.0f} GiB: emptying the sweep's uv cache"
            )
            uv.empty_cache()
        return self._fits(name) or not self._leases

    def _removable(self, name: str) -> list[str]:
        """Return environments that are not in use and that are least needed: those that are done,
        then those that come last."""
        later = [other for other in reversed(self._planned) if other not in self._done]
        return [
            other for other in (*self._done, *later) if other != name and other not in self._leases
        ]

    def _remove(self, name: str) -> bool:
        place = self.cache.place(resolve(name))
        environment = next((entry for entry in self.cache.listing() if entry.path == place), None)
        removed = environment is not None and self.cache.remove(environment)
        if removed:
            self.say(f"{name}: removed, to make room")
        return removed

    def _fits(self, name: str) -> bool:
        present = {file for lease in self._leases for file in self._planned[lease].contents.files}
        return self._size() + _bytes(self._planned[name].contents, present) <= self.limit

    def _size(self) -> int:
        return self.used(
            self.downloads, *(self.cache.place(resolve(name)) for name in self._planned)
        )
