"""Building target environments into a cache: one build at a time per environment, whole or not at all, bounded in size.

Below ``<cache>/environments`` each environment has a folder NAME-KEY (the key changes with recipe, lock and platform) and beside it a
lock file that builders hold. The marker inside is written last: a folder without it is what an interrupted build left. Users hold a
shared lock on the lease inside; what is leased is never removed. Both locks are the kernel's: they end with their process, however it ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import BuildError, UsageError
from ..util.documents import load_json
from ..util.files import private_folder, read_bounded, write_whole
from ..util.paths import cache_root, can_write, homeless, writable_root
from ..util.sizes import GIB, MIB
from . import overlay, uv
from .install import install
from .locks import MAX_LOCK, usable_lock
from .recipes import STAND_INS, Recipe
from .uv import Progress

RESOLUTION = "resolution.txt"
_MARKER = "vllm-regress.json"
_LEASE = "vllm-regress.lease"
_MAX_MARKER = 64 * 1024
_SAID: set[Path] = set()
"""Caches of which it was said that they cannot be written."""
_FORMAT = 2
_DEFAULT_LIMIT = 60 * GIB


@dataclasses.dataclass(frozen=True)
class Built:
    """An environment in the cache. ``size`` in bytes, files shared by hard links counted in each; ``used`` seconds since the epoch."""

    name: str
    path: Path
    size: int
    used: float
    in_use: bool


class EnvironmentCache:
    """The environments below ``root``/environments. Safe between processes.

    ``limit_bytes``: what they may occupy together (default: VLLM_REGRESS_CACHE_LIMIT in GiB, else 60 GiB). Files shared by hard links
    count once. Over the limit the least recently used go first; one in use never goes.
    """

    def __init__(self, root: Path | None = None, limit_bytes: int | None = None) -> None:
        self.root = (root.absolute() if root else cache_root()) / "environments"
        self._limit = limit_bytes if limit_bytes is not None else _limit_from_environment()

    def ensure(self, recipe: Recipe, *, progress: Progress = lambda line: None) -> Path:
        """The interpreter of ``recipe``'s environment, built where it is not there yet. Raises ``BuildError`` or ``UsageError``."""
        with self.lease(recipe, progress=progress) as python:
            return python

    @contextlib.contextmanager
    def lease(self, recipe: Recipe, *, progress: Progress = lambda line: None) -> Iterator[Path]:
        """As ``ensure``; while the lease is held the environment is never evicted or removed, nor what it is laid over."""
        with contextlib.ExitStack() as below:
            base = None
            if recipe.overlay is not None:
                base = below.enter_context(self.lease(recipe.overlay.base, progress=progress))
                completed = overlay.completed_base(recipe.overlay, base)
                if completed is not None:
                    base = below.enter_context(self.lease(completed, progress=progress))
            yield below.enter_context(self._lease(recipe, base, progress))

    @contextlib.contextmanager
    def _lease(self, recipe: Recipe, base: Path | None, progress: Progress) -> Iterator[Path]:
        place = self.place(recipe)
        if _complete(place) and not can_write(self.root):
            with self._read_only_lease(place, progress) as python:
                yield python
            return
        if not self.root.is_dir() and (why := homeless()):
            raise UsageError(
                f"{recipe.name} is not built: {why}, so {self.root} cannot be the place for gigabytes. Set VLLM_REGRESS_CACHE to one that is yours"
            )
        try:
            private_folder(self.root)
            lock = FileLock(f"{place}.lock", thread_local=False)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                progress(f"{recipe.name}: another process is building it; waiting")
                lock.acquire()
        except OSError as error:
            raise UsageError(
                f"the cache {self.root} cannot be written: {error.strerror}. Set VLLM_REGRESS_CACHE to a place that can"
            ) from None
        try:
            fresh = not _complete(place)
            if fresh:
                self._sweep(place)
                self._build(recipe, place, base, progress)
            lease = os.open(place / _LEASE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lease, fcntl.LOCK_SH)
        finally:
            lock.release()
        try:
            os.utime(place / _LEASE)
            if fresh:
                self._evict(place, progress)
            yield place / "bin" / "python"
        finally:
            os.close(lease)

    @contextlib.contextmanager
    def _read_only_lease(self, place: Path, progress: Progress) -> Iterator[Path]:
        """As ``lease`` where nothing can be written, as in an image with its environments. Who can write there sees the lease."""
        if self.root not in _SAID:
            _SAID.add(self.root)
            progress(
                f"{self.root} cannot be written: what is built there is used, what must be written goes to {writable_root()}"
            )
        with contextlib.ExitStack() as held:
            with contextlib.suppress(FileNotFoundError):
                fcntl.flock(held.enter_context(open(place / _LEASE, "rb")), fcntl.LOCK_SH)
            yield place / "bin" / "python"

    def built(self, recipe: Recipe) -> Path | None:
        """The interpreter, if the environment is already there."""
        place = self.place(recipe)
        below = recipe.overlay is None or self.built(recipe.overlay.base) is not None
        return place / "bin" / "python" if below and _complete(place) else None

    def place(self, recipe: Recipe) -> Path:
        """The folder of ``recipe``'s environment, built or not."""
        if recipe.overlay is not None:
            base = self.place(recipe.overlay.base).name
            parts = (_FORMAT, recipe.overlay.source.key, recipe.overlay.version, recipe.overlay.remarks, base)
            slug = f"{recipe.name.partition('@')[0]}@{recipe.overlay.source.commit.id[:10]}"
            return self.root / f"{slug.replace('=', '')}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:10]}"
        plain = dataclasses.replace(recipe, lock=None, lock_local=None, description="", device="")
        digest = hashlib.sha256(repr((_FORMAT, plain, platform.system(), platform.machine())).encode())
        if recipe.build is not None:
            digest.update(repr(recipe.build).encode())
        for path in (
            recipe.lock,
            recipe.lock_local,
            *(file for name in recipe.stand_ins for file in sorted((STAND_INS / name).rglob("*.py"))),
        ):
            if path is not None:
                digest.update(read_bounded(path, MAX_LOCK, what="a lock"))
        return self.root / f"{recipe.name.replace('=', '')}-{digest.hexdigest()[:10]}"

    def listing(self) -> tuple[Built, ...]:
        """Every whole environment in the cache, least recently used first."""
        found = []
        for marker in self.root.glob(f"*/{_MARKER}"):
            with contextlib.suppress(OSError, UsageError, ValueError, KeyError, TypeError):
                about = load_json(marker, _MAX_MARKER)
                place = marker.parent
                used = (place / _LEASE).stat().st_mtime if (place / _LEASE).exists() else marker.stat().st_mtime
                found.append(Built(str(about["name"]), place, int(about["size"]), used, _in_use(place)))
        return tuple(sorted(found, key=lambda each: each.used))

    def remove(self, built: Built) -> bool:
        """Remove one environment; False when it is in use."""
        lock = FileLock(f"{built.path}.lock", thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        try:
            if _in_use(built.path):
                return False
            (built.path / _MARKER).unlink(missing_ok=True)  # first: what is half removed counts as not built
            shutil.rmtree(built.path, ignore_errors=True)
            return True
        finally:
            lock.release()

    def sweep(self) -> int:
        """Remove what interrupted builds left; the number of folders removed."""
        return self._sweep(None)

    def total_size(self) -> int:
        """Bytes that all environments occupy together, shared files counted once."""
        return _size(self.root)

    def _build(self, recipe: Recipe, place: Path, base: Path | None, progress: Progress) -> None:
        _end_writers(place)
        shutil.rmtree(place, ignore_errors=True)  # what an interrupted build left
        started = time.monotonic()
        try:
            lock = self._fill(recipe, place, base, progress)
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            size = _size(place)
            about = {"name": recipe.name, "size": size, "built": now, "lock": lock.name if lock else None}
            write_whole(place / _MARKER, json.dumps(about))
        except BaseException as error:
            shutil.rmtree(place, ignore_errors=True)
            if isinstance(error, OSError):
                raise BuildError(
                    uv.explain(f"{recipe.name}: building in {place}", str(error), error.errno or 1)
                ) from None
            raise
        shown = f"{size / GIB:.1f} GiB" if size > GIB / 10 else f"{size / MIB:.0f} MiB"
        progress(f"{recipe.name}: built in {time.monotonic() - started:.0f} s, {shown}")

    def _fill(self, recipe: Recipe, place: Path, base: Path | None, progress: Progress) -> Path | None:
        """Put everything into ``place``; returns the lock that was used."""
        if recipe.overlay is not None:
            assert base is not None
            overlay.lay_over(recipe.overlay, base, place)
            return None
        lock = usable_lock(recipe)
        progress(f"{recipe.name}: building ({f'from {lock.name}' if lock else 'no lock for it: resolving'})")
        uv.run(
            ["venv", "--quiet", "--python", recipe.python, place],
            doing=f"{recipe.name}: making a Python {recipe.python} environment",
        )
        used = install(recipe, lock, place / "bin" / "python", lambda line: progress(f"{recipe.name}: {line}"))
        site = next((place / "lib").glob("python3.*/site-packages"))
        for module in recipe.stand_ins:
            shutil.copytree(STAND_INS / module, site / module, dirs_exist_ok=True)
        if used is None:
            listed = uv.run(
                ["pip", "freeze", "--quiet", "--python", place / "bin" / "python"],
                doing=f"{recipe.name}: listing what was installed",
            )
            (place / RESOLUTION).write_text(listed + "\n", encoding="utf-8")
        return used

    def unfinished(self) -> tuple[Path, ...]:
        """Folders that interrupted builds left: no marker, and nobody builds there."""
        return tuple(place for place in sorted(self.root.glob("*/")) if self._abandoned(place, lambda: None))

    def remove_unfinished(self, place: Path) -> bool:
        """Remove what an interrupted build left in ``place``; False when it is being built, or was."""

        def remove() -> None:
            _end_writers(place)
            shutil.rmtree(place, ignore_errors=True)

        return self._abandoned(place, remove)

    def _abandoned(self, place: Path, then: Callable[[], None]) -> bool:
        """Whether ``place`` is half built and nobody's; if so ``then`` is called while its lock is held."""
        if not (place / _MARKER).exists():
            with (
                contextlib.suppress(Timeout, OSError),
                FileLock(f"{place}.lock", thread_local=False).acquire(timeout=0),
            ):
                if place.exists() and not (place / _MARKER).exists():
                    then()
                    return True
        return False

    def _sweep(self, ours: Path | None) -> int:
        return sum(self.remove_unfinished(place) for place in self.root.glob("*/") if place != ours)

    def _evict(self, keep: Path, progress: Progress) -> None:
        listed = self.listing()
        if sum(each.size for each in listed) <= self._limit:
            return
        for each in listed:
            if self.total_size() <= self._limit:
                return
            if each.path != keep and not each.in_use and self.remove(each):
                progress(f"{each.name}: removed from the cache, which is limited to {self._limit / GIB:.0f} GiB")


def bytecode_folder(python: Path) -> Path | None:
    """Where ``python`` may keep compiled modules: inside its environment, if that is one of a cache's and can be written.

    uv installs none. What an environment's processes import is compiled once, the rest never: tens of megabytes instead of gigabytes.
    """
    place = python.parent.parent
    folder = place / overlay.BYTECODE
    if not (place / _MARKER).exists():
        return None
    return folder if folder.exists() or os.access(place, os.W_OK) else None


def _complete(place: Path) -> bool:
    """Built to the end, and the Python it links to is still there."""
    return (place / _MARKER).exists() and (place / "bin" / "python").exists()


def _end_writers(place: Path) -> None:
    """End uv processes that still write to ``place``: their controller was killed, or we would not hold the build's lock."""
    import psutil

    ours = {str(place), str(place / "bin" / "python")}
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if ours & set(words[1:]) and {"venv", "pip"} & set(words[1:4]):
            with contextlib.suppress(psutil.Error):
                process.kill()
                process.wait(10)


def _in_use(place: Path) -> bool:
    try:
        with open(place / _LEASE, "rb") as lease:
            fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _size(place: Path) -> int:
    out = subprocess.run(
        ["du", "-s", "--block-size=1", str(place)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return int(out.stdout.split()[0]) if out.stdout.split() else 0


def _limit_from_environment() -> int:
    text = os.environ.get("VLLM_REGRESS_CACHE_LIMIT")
    if text is None:
        return _DEFAULT_LIMIT
    try:
        return int(float(text) * GIB)
    except ValueError:
        raise UsageError(f"VLLM_REGRESS_CACHE_LIMIT={text!r} is not a number of GiB") from None
