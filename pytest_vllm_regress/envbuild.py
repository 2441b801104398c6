"""Building target environments into a cache: one build at a time per environment, whole or not at all, bounded in size."""

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

import platformdirs
from filelock import FileLock, Timeout

from . import uv
from .environments import Recipe
from .errors import BuildError, UsageError

Progress = Callable[[str], None]
STAND_INS = Path(__file__).parent / "data" / "stand_ins"
_MARKER = "vllm-regress.json"
_LEASE = "vllm-regress.lease"
_FORMAT = 1
_DEFAULT_LIMIT = 60 * 2**30


def cache_root() -> Path:
    """Where everything that can be made again is kept: VLLM_REGRESS_CACHE, or the user's cache directory."""
    given = os.environ.get("VLLM_REGRESS_CACHE")
    return Path(given) if given else Path(platformdirs.user_cache_dir("vllm-regress"))


@dataclasses.dataclass(frozen=True)
class Built:
    """An environment in the cache. ``size`` in bytes, files shared by hard links counted in each; ``used`` seconds since the epoch."""

    name: str
    path: Path
    size: int
    used: float
    in_use: bool


class EnvironmentCache:
    """The environments below ``root``/environments. Safe between processes."""

    def __init__(self, root: Path | None = None, limit_bytes: int | None = None) -> None:
        self.root = (root or cache_root()) / "environments"
        self._limit = limit_bytes if limit_bytes is not None else _limit_from_environment()

    def ensure(self, recipe: Recipe, *, progress: Progress = lambda line: None) -> Path:
        """The interpreter of ``recipe``'s environment, built where it is not there yet. Raises ``BuildError`` or ``UsageError``."""
        with self.lease(recipe, progress=progress) as python:
            return python

    @contextlib.contextmanager
    def lease(self, recipe: Recipe, *, progress: Progress = lambda line: None) -> Iterator[Path]:
        """As ``ensure``; while the lease is held the environment is never evicted or removed."""
        place = self._place(recipe)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = FileLock(f"{place}.lock", thread_local=False)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                progress(f"{recipe.name}: another process is building it; waiting")
                lock.acquire()
        except OSError as error:
            raise UsageError(f"the cache {self.root} cannot be written: {error.strerror}. Set VLLM_REGRESS_CACHE to a place that can") from None
        try:
            if not (place / _MARKER).exists():
                self._build(recipe, place, progress)
            lease = os.open(place / _LEASE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lease, fcntl.LOCK_SH)
        finally:
            lock.release()
        try:
            os.utime(place / _LEASE)
            self._evict(place, progress)
            yield place / "bin" / "python"
        finally:
            os.close(lease)

    def built(self, recipe: Recipe) -> Path | None:
        """The interpreter, if the environment is already there."""
        place = self._place(recipe)
        return place / "bin" / "python" if (place / _MARKER).exists() else None

    def listing(self) -> tuple[Built, ...]:
        """Every environment in the cache, least recently used first."""
        found = []
        for marker in self.root.glob(f"*/{_MARKER}"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                about = json.loads(marker.read_text())
                place = marker.parent
                used = (place / _LEASE).stat().st_mtime if (place / _LEASE).exists() else marker.stat().st_mtime
                found.append(Built(about["name"], place, about["size"], used, _in_use(place)))
        return tuple(sorted(found, key=lambda each: each.used))

    def remove(self, built: Built) -> bool:
        """Remove one environment; False when it is in use."""
        with FileLock(f"{built.path}.lock", thread_local=False):
            if _in_use(built.path):
                return False
            (built.path / _MARKER).unlink(missing_ok=True)  # first: what is half removed counts as not built
            shutil.rmtree(built.path, ignore_errors=True)
            return True

    def _place(self, recipe: Recipe) -> Path:
        lock = recipe.lock.read_bytes() if recipe.lock else b""
        plain = repr((_FORMAT, dataclasses.replace(recipe, lock=None, description=""), platform.machine()))
        key = hashlib.sha256(plain.encode() + lock).hexdigest()[:10]
        return self.root / f"{recipe.name.replace('=', '')}-{key}"

    def _build(self, recipe: Recipe, place: Path, progress: Progress) -> None:
        shutil.rmtree(place, ignore_errors=True)  # what an interrupted build left
        started = time.monotonic()
        progress(f"{recipe.name}: building ({'from its lock' if recipe.lock else 'no lock: resolving'})")
        try:
            uv.run(["venv", "--python", recipe.python, place], doing=f"{recipe.name}: making a Python {recipe.python} environment")
            _install(recipe, place / "bin" / "python", lambda line: progress(f"{recipe.name}: {line}"))
            site = next((place / "lib").glob("python3.*/site-packages"))
            for module in recipe.stand_ins:
                shutil.copytree(STAND_INS / module, site / module, dirs_exist_ok=True)
            about = {"name": recipe.name, "size": _size(place), "built": datetime.datetime.now(datetime.timezone.utc).isoformat()}
            (place / _MARKER).write_text(json.dumps(about))
        except BaseException as error:
            shutil.rmtree(place, ignore_errors=True)
            if isinstance(error, OSError):
                raise BuildError(f"{recipe.name}: {error}") from None
            raise
        progress(f"{recipe.name}: built in {time.monotonic() - started:.0f} s, {about['size'] / 2**30:.1f} GiB")

    def _evict(self, keep: Path, progress: Progress) -> None:
        listed = self.listing()
        total = sum(each.size for each in listed)
        for each in listed:
            if total <= self._limit:
                return
            if each.path != keep and not each.in_use and self.remove(each):
                progress(f"{each.name}: removed from the cache, which is limited to {self._limit / 2**30:.0f} GiB")
                total -= each.size


def lock_text(recipe: Recipe, progress: Progress = lambda line: None) -> str:
    """Resolve ``recipe`` afresh into a lock: every package with its version and hashes."""
    with _requirement_files(recipe, exclude=recipe.relax_local) as options:
        arguments = ["pip", "compile", "-", "--quiet", "--no-header", "--no-annotate", "--generate-hashes", "--python-version", recipe.python]
        for name in recipe.relax_local:
            arguments += ["--no-emit-package", name]
        said = uv.run([*arguments, *options], doing=f"{recipe.name}: locking", stdin="\n".join(recipe.requirements), progress=progress)
    lines = [line for line in said.splitlines() if not line.startswith("#")]
    return "\n".join(lines).strip() + "\n"


def release_date(package: str, version: str) -> datetime.date:
    """The day ``package`` ``version`` was uploaded: the first date by which it can be resolved. Raises ``BuildError`` when never."""
    note = cache_root() / "release-dates.json"
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(note.read_text())
    key = f"{package}=={version}"
    if key not in known:
        early, late = datetime.date(2023, 1, 1), datetime.date.today()
        if not _exists_by(key, late):
            raise BuildError(f"{key} cannot be found on the package index: no such release, or the index cannot be reached")
        while (late - early).days > 1:
            middle = early + (late - early) // 2
            early, late = (early, middle) if _exists_by(key, middle) else (middle, late)
        known[key] = late.isoformat()
        with contextlib.suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(json.dumps(known))
    return datetime.date.fromisoformat(known[key])


def _install(recipe: Recipe, python: Path, progress: Progress) -> None:
    doing = f"{recipe.name}: installing {', '.join(recipe.requirements)}"
    into = ["pip", "install", "--python", python]
    with _requirement_files(recipe, exclude=()) as options:
        if recipe.lock is None:
            uv.run([*into, *recipe.requirements, *options], doing=doing, progress=progress)
            return
        if recipe.relax_local:  # these depend on the machine's index: any build of the version the target pins
            package, version = recipe.target
            pins = [f"{name}=={relaxed}" for name, relaxed in _relaxed_pins(f"{package}=={version}", recipe.relax_local).items()]
            uv.run([*into, *pins], doing=f"{recipe.name}: installing {', '.join(pins)}", progress=progress)
    uv.run([*into, "--no-deps", "--require-hashes", "-r", recipe.lock], doing=f"{doing} from {recipe.lock.name}", progress=progress)


@contextlib.contextmanager
def _requirement_files(recipe: Recipe, *, exclude: tuple[str, ...]) -> Iterator[list[str | Path]]:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="vr-recipe-") as folder:
        overrides = list(recipe.overrides)
        if recipe.relax_local:
            package, version = recipe.target
            overrides += [f"{name}=={pin}" for name, pin in _relaxed_pins(f"{package}=={version}", recipe.relax_local).items()]
        options: list[str | Path] = []
        for flag, content in (("--overrides", overrides), ("--constraints", recipe.constraints)):
            if content:
                file = Path(folder, flag.strip("-"))
                file.write_text("\n".join(content) + "\n")
                options += [flag, file]
        newest = recipe.exclude_newer
        if newest == "release":
            newest = (release_date(*recipe.target) + datetime.timedelta(days=2)).isoformat()
        if newest:
            options += ["--exclude-newer", newest]
        yield options


def _relaxed_pins(requirement: str, names: tuple[str, ...]) -> dict[str, str]:
    """What ``requirement`` pins the named packages to, without the local part: read from its metadata through a resolution."""
    import re
    import tempfile

    with tempfile.TemporaryDirectory(prefix="vr-relax-") as folder:
        place = Path(folder)
        uv.run(["pip", "install", "--quiet", "--no-deps", "--target", place, "--python-version", "3.11", requirement],
               doing=f"reading what {requirement} needs")
        metadata = next(place.glob("*.dist-info/METADATA")).read_text(encoding="utf-8", errors="replace")
    found = {}
    for name in names:
        pin = re.search(rf"^Requires-Dist: {re.escape(name)}\s*\(?==\s*([\d.]+)", metadata, re.M)
        if pin:
            found[name] = pin[1]
    return found


def _exists_by(requirement: str, day: datetime.date) -> bool:
    try:
        uv.run(["pip", "compile", "-", "--quiet", "--no-deps", "--no-header", "--python-version", "3.11", "--exclude-newer", day.isoformat()],
               doing=f"looking for {requirement}", stdin=requirement)
    except BuildError as error:
        if "cannot be resolved" in str(error):
            return False
        raise
    return True


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
    out = subprocess.run(["du", "-s", "--block-size=1", str(place)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return int(out.stdout.split()[0]) if out.stdout.split() else 0


def _limit_from_environment() -> int:
    text = os.environ.get("VLLM_REGRESS_CACHE_LIMIT")
    if text is None:
        return _DEFAULT_LIMIT
    try:
        return int(float(text) * 2**30)
    except ValueError:
        raise UsageError(f"VLLM_REGRESS_CACHE_LIMIT={text!r} is not a number of GiB") from None
