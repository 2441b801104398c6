"""The cache of target environments: one build at a time per environment, atomic, limited in size.

Each environment has a folder NAME-KEY in ``<cache>/environments``, where the key depends on recipe,
lock and platform, and a lock file beside it that builders hold. The marker inside the folder is
written last: a folder without it is an interrupted build. Users hold a shared lock on the lease
file inside; a leased environment is never removed. The kernel releases both locks when their
process ends.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import BuildError, BuildFailure, DiskFull, UsageError
from ..util.documents import load_json
from ..util.files import is_full, private_folder, read_bounded, remove_tree, write_atomically
from ..util.paths import (
    cache_root,
    can_write,
    check_steps,
    check_writers,
    is_world_writable,
    missing_home,
    writable_root,
)
from ..util.signals import interruptible
from ..util.sizes import GIB, MIB, disk_usage
from . import uv
from .install import BYTECODE, base_with_requirements, fill_environment
from .locks import MAX_LOCK
from .recipes import STAND_INS, Recipe
from .uv import Progress

logger = logging.getLogger("vllm_regress.environments")
_MARKER = "vllm-regress.json"
_TOTAL = "size.json"
_LEASE = "vllm-regress.lease"
_LOOKS, _LOOK_S = 3, 0.01
_MAX_MARKER = 64 * 1024
"""Bytes of a marker, which has about a hundred. Others may have written the file."""
_reported_read_only: set[Path] = set()
"""Read-only caches that the user was told about."""
_FORMAT = 2
"""Part of each environment's key: raised when environments of earlier versions are not to be used."""
_DEFAULT_LIMIT = 60 * GIB
"""Room for five environments with CUDA of 12 GiB each, or more of them with files in common."""


@dataclass(frozen=True)
class CachedEnvironment:
    """A complete environment.

    ``size`` in bytes includes files shared by hard links; ``used`` is in seconds since the epoch.
    """

    name: str
    path: Path
    size: int
    used: float
    in_use: bool


class EnvironmentCache:
    """The environments in ``root``/environments. Safe for several processes.

    ``limit_bytes`` limits their total size (default: VLLM_REGRESS_CACHE_LIMIT in GiB, else 60 GiB),
    counting files shared by hard links once, with those in a uv cache of this project's own
    (``uv.own_downloads``). Above it that cache is emptied, and then the least recently used
    environments that are not in use are removed.
    """

    def __init__(self, root: Path | None = None, limit_bytes: int | None = None) -> None:
        self.root = (root.absolute() if root else cache_root()) / "environments"
        self._limit = limit_bytes if limit_bytes is not None else _limit_from_environment()

    def ensure(self, recipe: Recipe, *, progress: Progress = lambda line: None) -> Path:
        """Return the interpreter of ``recipe``'s environment, after building it if necessary.

        Raises ``BuildError`` or ``UsageError``.
        """
        with self.lease(recipe, progress=progress) as python:
            return python

    @contextlib.contextmanager
    def lease(self, recipe: Recipe, *, progress: Progress = lambda line: None) -> Iterator[Path]:
        """Like ``ensure``, and keep the environment, with the one it overlays, from being removed
        while the context is open."""
        with contextlib.ExitStack() as leases:
            base = None
            if recipe.overlay is not None:
                base = leases.enter_context(self.lease(recipe.overlay.base, progress=progress))
                completed = base_with_requirements(recipe.overlay, base)
                if completed is not None:
                    base = leases.enter_context(self.lease(completed, progress=progress))
            elif (
                (varied := recipe.source_of_copy)
                and self.built(varied)
                and not self._complete(self.place(recipe))
            ):
                base = leases.enter_context(self.lease(varied, progress=progress))
            yield leases.enter_context(self._lease(recipe, base, progress))

    @contextlib.contextmanager
    def _lease(self, recipe: Recipe, base: Path | None, progress: Progress) -> Iterator[Path]:
        folder = self.place(recipe)
        if self._complete(folder) and not can_write(self.root):
            with self._read_only_lease(folder, progress) as python:
                yield python
            return
        with _full_disk_as_build_error(recipe.name):
            lock = self._lock(recipe, folder, progress)
            try:
                is_new = not self._complete(folder)
                if is_new:
                    why = self._why_not_built(recipe, folder)
                    logger.info("%s: building in %s: %s", recipe.name, folder, why)
                    self.sweep(keep=folder)
                    with interruptible():
                        self._build(recipe, folder, base, progress)
                else:
                    logger.info("%s: reusing %s", recipe.name, folder)
                lease = os.open(folder / _LEASE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(lease, fcntl.LOCK_SH)
            finally:
                lock.release()
        try:
            os.utime(folder / _LEASE)
            if is_new:
                self._evict(folder, progress)
            yield folder / "bin" / "python"
        finally:
            os.close(lease)

    def check_place(self, name: str) -> None:
        """Raise ``UsageError`` if there is no place to build the environment ``name`` in.

        Creates nothing.
        """
        if not self.root.is_dir() and (why := missing_home()):
            raise UsageError(
                f"{name} is not built: {why}, so there is no place for gigabytes in {self.root}. Set VLLM_REGRESS_CACHE to a folder of yours"
            )

    def _lock(self, recipe: Recipe, folder: Path, progress: Progress) -> FileLock:
        """Acquire the builders' lock of ``folder``, waiting for another build of it."""
        self.check_place(recipe.name)
        try:
            private_folder(self.root)
            lock = _builders_lock(folder)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                logger.info(
                    "%s: waiting for the lock %s, without a deadline", recipe.name, lock.lock_file
                )
                progress(f"{recipe.name}: another process is building it; waiting")
                while not lock.is_locked:
                    uv.check_cancelled()
                    with contextlib.suppress(Timeout):
                        lock.acquire(timeout=uv.TICK_S)
        except OSError as error:
            if is_full(error):
                raise
            raise UsageError(
                f"the cache {self.root} cannot be written: {error.strerror}. Set VLLM_REGRESS_CACHE to a writable path"
            ) from None
        return lock

    def _why_not_built(self, recipe: Recipe, folder: Path) -> str:
        if (folder / _MARKER).exists():
            return "the Python that it links to is gone"
        if folder.exists():
            return "an earlier build was interrupted"
        older = [path.name for path in self.root.glob(f"{folder.name.rpartition('-')[0]}-*/")]
        return (
            f"recipe, lock or platform differ from {', '.join(older)}"
            if older
            else "it is not in the cache"
        )

    @contextlib.contextmanager
    def _read_only_lease(self, place: Path, progress: Progress) -> Iterator[Path]:
        """Lease an environment of a read-only cache, such as one in a container image.

        Processes that can write there see the lease.
        """
        if self.root not in _reported_read_only:
            _reported_read_only.add(self.root)
            progress(
                f"{self.root} cannot be written: its environments are used, and anything new is written to {writable_root()}"
            )
        with contextlib.ExitStack() as files:
            with contextlib.suppress(FileNotFoundError):
                fcntl.flock(files.enter_context(open(place / _LEASE, "rb")), fcntl.LOCK_SH)
            if not self._complete(place):  # its owner, who can write there, was faster
                raise UsageError(f"{place} was removed at this moment. Run the command again")
            yield place / "bin" / "python"

    def built(self, recipe: Recipe) -> Path | None:
        """Return the interpreter, or None if the environment, or the one it overlays, is not built."""
        folder = self.place(recipe)
        has_base = recipe.overlay is None or self.built(recipe.overlay.base) is not None
        return folder / "bin" / "python" if has_base and self._complete(folder) else None

    def place(self, recipe: Recipe) -> Path:
        """Return the folder of ``recipe``'s environment, whether or not it exists."""
        if recipe.overlay is not None:
            base = self.place(recipe.overlay.base).name
            source = recipe.overlay.source
            slug = f"{recipe.name.partition('@')[0]}@{source.commit.id[:10]}"
            parts = (_FORMAT, source.key, recipe.overlay.version, recipe.overlay.remarks, base)
            return self._named_folder(slug, hashlib.sha256(repr(parts).encode()))
        plain = replace(recipe, lock=None, lock_local=None, description="", device="")
        about = (_FORMAT, plain, platform.system(), platform.machine())
        digest = hashlib.sha256(repr(about).encode())
        if recipe.build is not None:
            digest.update(repr(recipe.build).encode())
        modules = (STAND_INS / name for name in recipe.stand_ins)
        copied = (file for module in modules for file in sorted(module.rglob("*.py")))
        for path in filter(None, (recipe.lock, recipe.lock_local, *copied)):
            digest.update(read_bounded(path, MAX_LOCK, what="a lock"))
        return self._named_folder(recipe.name, digest)

    def _named_folder(self, name: str, digest: hashlib._Hash) -> Path:
        return self.root / f"{name.replace('=', '')}-{digest.hexdigest()[:10]}"

    def listing(self) -> tuple[CachedEnvironment, ...]:
        """Return every complete environment in the cache, least recently used first."""
        environments = []
        for marker in self.root.glob(f"*/{_MARKER}"):
            with contextlib.suppress(OSError, UsageError, ValueError, KeyError, TypeError):
                content = load_json(marker, _MAX_MARKER)
                folder = marker.parent
                if folder.is_symlink():
                    continue
                used = (folder / _LEASE if (folder / _LEASE).exists() else marker).stat().st_mtime
                size = int(content["size"])
                environments.append(
                    CachedEnvironment(str(content["name"]), folder, size, used, _in_use(folder))
                )
        return tuple(sorted(environments, key=lambda environment: environment.used))

    def remove(self, environment: CachedEnvironment) -> bool:
        """Remove an environment. Return False if it is in use, or is a symbolic link now."""
        with (
            contextlib.suppress(Timeout),
            _builders_lock(environment.path).acquire(timeout=0),
            _unused(environment.path) as folder,
        ):
            if folder is not None:
                logger.info("%s: removing %s", environment.name, environment.path)
                # First, so that a partial removal counts as not built.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(_MARKER, dir_fd=folder)
                return remove_tree(environment.path)
        return False

    def sweep(self, keep: Path | None = None) -> int:
        """Remove the remains of interrupted builds, except in ``keep``. Return how many were
        removed."""
        return sum(self.remove_unfinished(place) for place in self.root.glob("*/") if place != keep)

    def total_size(self) -> int:
        """Return the disk usage of all environments in bytes, counting shared files once.

        It is remembered until one comes or goes.
        """
        environments = sorted(
            (environment.path.name, environment.size) for environment in self.listing()
        )
        now = hashlib.sha256(repr(environments).encode()).hexdigest()
        with contextlib.suppress(OSError, UsageError, ValueError, KeyError, TypeError):
            remembered = load_json(self.root / _TOTAL, _MAX_MARKER)
            if remembered["environments"] == now:
                return int(remembered["size"])
        downloads = uv.own_downloads()
        size = disk_usage(self.root, *([downloads] if downloads else []))
        if environments and can_write(self.root):
            with contextlib.suppress(UsageError):  # a full disk
                write_atomically(
                    self.root / _TOTAL, json.dumps({"environments": now, "size": size})
                )
        return size

    def _build(self, recipe: Recipe, folder: Path, base: Path | None, progress: Progress) -> None:
        _end_writers(folder)
        remove_tree(folder)  # remains of an interrupted build
        started = time.monotonic()
        try:
            lock = fill_environment(recipe, folder, base, progress)
            for step in (folder, *_steps(folder)):
                if step.exists():
                    step.chmod(
                        step.stat().st_mode & ~0o022
                    )  # a umask of 0 would make them useless (see _complete)
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            size = disk_usage(folder)
            content = {"name": recipe.name, "size": size, "built": now, "lock": lock and lock.name}
            write_atomically(folder / _MARKER, json.dumps(content))
        except BaseException as error:
            remove_tree(folder)
            if isinstance(error, KeyboardInterrupt):
                progress(
                    f"{recipe.name}: the build was interrupted and its half-built environment removed"
                )
            if isinstance(error, OSError) and not is_full(error):
                raise uv.build_error(
                    f"{recipe.name}: building in {folder}", str(error), error.errno or 1
                ) from None
            raise
        rounded = f"{size / GIB:.1f} GiB" if size > GIB / 10 else f"{size / MIB:.0f} MiB"
        progress(f"{recipe.name}: built in {time.monotonic() - started:.0f} s, {rounded}")

    def unfinished(self) -> tuple[Path, ...]:
        """Return the folders of interrupted builds: without a marker, and nobody is building there."""
        return tuple(filter(self._abandoned, sorted(self.root.glob("*/"))))

    def remove_unfinished(self, place: Path) -> bool:
        """Remove the interrupted build in ``place``.

        Return False if it is being built or complete, or cannot be removed.
        """
        return self._abandoned(place, remove=True) and not os.path.lexists(place)

    def _complete(self, place: Path) -> bool:
        """Return whether the build finished and the Python that the environment links to still
        exists.

        Raises ``UsageError`` if somebody else can change a step from the cache to the interpreter
        or to its packages.
        """
        check_steps(self.root.parent, place)
        if not (place / _MARKER).exists() or not (place / "bin" / "python").exists():
            return False
        for path in _steps(place):
            check_writers(path)
        # Its own owner is not checked: it is the Python that the user, or an administrator, has
        # installed for uv.
        python = place / "bin" / "python"
        check_writers(python, linked=False)
        if is_world_writable(python):
            raise UsageError(
                f"{python.resolve()}: everybody can write to this interpreter. Run `chmod o-w` on it, or build anew with another Python"
            )
        return True

    def _abandoned(self, place: Path, *, remove: bool = False) -> bool:
        """Return whether ``place`` is an interrupted build. ``remove``: remove what is there, while
        its lock is held."""
        if place.is_symlink() or (place / _MARKER).exists():
            return False
        with (
            contextlib.suppress(Timeout, OSError),
            _builders_lock(place).acquire(timeout=0),
        ):
            if place.is_dir() and not place.is_symlink() and not (place / _MARKER).exists():
                if remove:
                    _end_writers(place)
                    remove_tree(place)
                return True
        return False

    def _evict(self, keep: Path, progress: Progress) -> None:
        # Environments share files by hard links, with each other and with uv's cache, so removing one
        # frees less than its size, perhaps nothing: the limit is compared with what is on the disk
        # after each removal. The sum of the sizes counts shared files several times; below the limit
        # it spares reading the folders.
        environments = self.listing()
        downloads = uv.own_downloads()
        has_downloads = downloads is not None and downloads.exists()
        if not has_downloads and sum(entry.size for entry in environments) <= self._limit:
            self.total_size()  # remembered for ``env list``
            return
        if has_downloads and self.total_size() > self._limit:
            progress(
                f"more than {self._limit / GIB:.0f} GiB in {self.root.parent}: emptying uv's cache there"
            )
            try:
                uv.empty_cache()
            except BuildError as error:  # the environment is built all the same
                progress(str(error))
            (self.root / _TOTAL).unlink(missing_ok=True)
        for environment in environments:
            if self.total_size() <= self._limit:
                return
            if environment.path != keep and not environment.in_use and self.remove(environment):
                progress(
                    f"{environment.name}: removed from the cache, which is limited to {self._limit / GIB:.0f} GiB"
                )


@contextlib.contextmanager
def _full_disk_as_build_error(name: str) -> Iterator[None]:
    """Raise a full disk as the ``BuildError`` that it is, whatever could not be written: marker,
    lock or lease. A run goes on with the environments that it has."""
    try:
        yield
    except (OSError, DiskFull) as error:
        if not is_full(error):
            raise
        failure = BuildFailure.DISK_FULL
        raise BuildError(
            f"{name}: {failure.value}: {error}. Free some space, or `vllm-regress env prune`",
            failure,
        ) from None


def bytecode_folder(python: Path) -> Path | None:
    """Return where ``python`` keeps its bytecode: inside its environment, if that is in a cache and
    writable or has such a folder. Else None.

    Also None if somebody else can write there, because bytecode is code.

    uv installs no bytecode. Only modules that are imported get compiled: tens of megabytes instead
    of gigabytes.
    """
    place = python.parent.parent
    folder = place / BYTECODE
    if not (place / _MARKER).exists():
        return None
    try:
        check_steps(place, folder)
    except UsageError:
        return None
    return folder if folder.exists() or os.access(place, os.W_OK) else None


def _builders_lock(place: Path) -> FileLock:
    return FileLock(f"{place}.lock", thread_local=False)


def _steps(place: Path) -> tuple[Path, ...]:
    """Return the folders and files of an environment that decide which code its interpreter runs,
    without the interpreter itself."""
    libraries = [
        path
        for pattern in ("lib/python3.*", "lib/python3.*/site-packages")
        for path in place.glob(pattern)
    ]
    return (place / "bin", place / "pyvenv.cfg", place / "lib", *libraries)


def _end_writers(place: Path) -> None:
    """End uv processes that still write to ``place``.

    Their controller was killed, otherwise this process would not hold the lock.
    """
    import psutil

    paths = {str(place), str(place / "bin" / "python")}
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if paths & set(words[1:]) and {"venv", "pip"} & set(words[1:4]):
            with contextlib.suppress(psutil.Error):
                process.kill()
                process.wait(10)


def _in_use(place: Path) -> bool:
    with _unused(place) as folder:
        return folder is None


@contextlib.contextmanager
def _unused(place: Path) -> Iterator[int | None]:
    """Yield a descriptor of the folder ``place``; None if somebody uses it, or if it is no folder.

    Nobody can lease it while the context is open.
    """
    with contextlib.ExitStack() as files:
        try:
            folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            files.callback(os.close, folder)
            with contextlib.suppress(FileNotFoundError):
                lease = os.open(
                    _LEASE,
                    os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
                    dir_fd=folder,
                )
                files.callback(os.close, lease)
                _lock_unused(lease)
        except OSError:
            yield None
        else:
            yield folder


def _lock_unused(lease: int) -> None:
    """Lock a lease. Raises ``BlockingIOError`` if the environment is used. A process that only
    looks whether it is, as this one, has the lock for an instant: then it is tried again."""
    for left in reversed(range(_LOOKS)):
        try:
            fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                raise
            time.sleep(_LOOK_S)
        else:
            return


def _limit_from_environment() -> int:
    limit = limit_of_user()
    return _DEFAULT_LIMIT if limit is None else limit


def limit_of_user() -> int | None:
    """Return the bytes that VLLM_REGRESS_CACHE_LIMIT allows; None if it is not set."""
    text = os.environ.get(uv.LIMIT_VARIABLE)
    if text is None:
        return None
    try:
        return int(float(text) * GIB)
    except ValueError:
        raise UsageError(f"VLLM_REGRESS_CACHE_LIMIT={text!r} is not a number of GiB") from None
