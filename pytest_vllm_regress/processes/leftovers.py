"""What runs and builds whose controller is gone left behind: found, and removed where asked. Only what is provably ours is ever touched.

The proof is a name that only we give: the run's tag in a process's environment, the owner's file in a run directory, the run's own note of a
shared-memory file, a folder without marker in our cache whose lock nobody holds. The owner must be gone: same machine, same
pid namespace, and no process of that pid and start time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import psutil

from ..environments.cache import EnvironmentCache
from ..target_site.vllm_regress_target.nanny import TAG, mapped_shm
from ..util.files import size_of
from ..util.owner import Owner, State, same_namespace
from ..util.paths import cache_root
from ..util.rundir import AbandonedRun, abandoned_runs
from . import family

_DOWNLOAD_S = 86400.0


@dataclasses.dataclass(frozen=True)
class Trace:
    """One thing left behind. ``owner`` in words; ``since`` in seconds since the epoch; ``size`` in bytes. ``remove`` is True when it is gone."""

    what: str
    name: str
    owner: str
    since: float
    size: int
    remove: Callable[[], bool] = dataclasses.field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.what} {self.name}"

    def to_json(self, *, remove: bool) -> dict[str, str | int | float | bool]:
        """Plain values, with whether it was removed, where that is asked for."""
        gone = remove and self.remove()
        return {
            "what": self.what,
            "name": self.name,
            "owner": self.owner,
            "since": self.since,
            "size": self.size,
            "removed": gone,
        }


def sweep() -> tuple[str, ...]:
    """Remove what abandoned runs left; returns a line about each trace."""
    return tuple(
        f"{'removed' if trace.remove() else 'could not remove'} {trace}, left by {trace.owner}" for trace in of_runs()
    )


def of_runs() -> Iterator[Trace]:
    """Traces of abandoned runs: processes first, then their shared memory, then their directories."""
    abandoned = list(abandoned_runs())
    orphans = list(_orphans({each.run.tag: each.controller_pid for each in abandoned}))
    segments = {segment: _controller(each.controller_pid) for each in abandoned for segment in each.run.segments()}
    for process, owner, since in orphans:
        mapped = map(Path, mapped_shm([process.pid]))
        segments |= dict.fromkeys((each for each in mapped if _changed_since(each, since)), owner)
        with contextlib.suppress(psutil.Error):
            yield Trace(
                "process",
                family.describe(process),
                owner,
                process.create_time(),
                process.memory_info().rss,
                partial(_end, process),
            )
    ours = {process.pid for process, *_ in orphans}
    strangers = _mapped_by_others(ours) if segments else set()
    for path, owner in segments.items():
        with contextlib.suppress(OSError):
            status = path.stat()
            if str(path) not in strangers and status.st_uid == os.getuid():
                yield Trace("shared memory", str(path), owner, status.st_mtime, status.st_size, partial(_unlink, path))
    for run in abandoned:
        with contextlib.suppress(OSError):
            path, owner = run.run.path, _controller(run.controller_pid)
            yield Trace(
                "run directory", str(path), owner, path.stat().st_mtime, size_of(path), partial(_remove_run, run)
            )


def of_builds(cache: EnvironmentCache | None = None) -> Iterator[Trace]:
    """Traces of interrupted builds and downloads in the cache."""
    cache = cache or EnvironmentCache()
    for place in cache.unfinished():
        with contextlib.suppress(OSError):
            since, size = place.stat().st_mtime, size_of(place)
            yield Trace(
                "half-built environment",
                str(place),
                "a build that ended early",
                since,
                size,
                partial(cache.remove_unfinished, place),
            )
    for place in sorted((cache_root() / "sidecars").glob(".*-*/")):
        with contextlib.suppress(OSError):
            since = place.stat().st_mtime
            if time.time() - since > _DOWNLOAD_S:  # no lock says that it goes on; none takes a day
                yield Trace(
                    "half-fetched sidecar",
                    str(place),
                    "a download that ended early",
                    since,
                    size_of(place),
                    partial(_rmtree, place),
                )


def _orphans(abandoned: Mapping[str, int]) -> Iterator[tuple[psutil.Process, str, float]]:
    """Living processes of this user that carry the tag of a run whose controller is gone: the tag names it, or ``abandoned`` does by the tag
    (an xdist worker's run, where the worker lives and what it worked for is gone). With the owner in words, and since when there was one."""
    head = f"{TAG}=".encode()
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if (
                process.uids().real != os.getuid()
                or process.pid == os.getpid()
                or process.status() == psutil.STATUS_ZOMBIE
            ):
                continue
            variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            tag = next((each[len(head) :].decode(errors="replace") for each in variables if each.startswith(head)), "")
            owner = Owner.from_tag(tag)
            if owner is None or not same_namespace(process.pid):
                continue
            if owner.state() is State.GONE or tag in abandoned:
                yield process, _controller(abandoned.get(tag, owner.pid)), owner.since


def _changed_since(path: Path, since: float) -> bool:
    """What was there before the run is not its own, whoever has it mapped: a checkpoint in /dev/shm, for one."""
    with contextlib.suppress(OSError):
        return path.lstat().st_ctime >= since
    return False


def _mapped_by_others(ours: set[int]) -> set[str]:
    return mapped_shm(int(entry) for entry in os.listdir("/proc") if entry.isdigit() and int(entry) not in ours)


def _controller(pid: int) -> str:
    return f"process {pid}, which is gone"


def _end(process: psutil.Process) -> bool:
    return not family.end([process], grace_s=0.0)


def _unlink(path: Path) -> bool:
    path.unlink(missing_ok=True)
    return not path.exists()


def _rmtree(path: Path) -> bool:
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


def _remove_run(abandoned: AbandonedRun) -> bool:
    family.end(family.tagged(abandoned.run.tag), grace_s=0.0)  # what started since it was looked at would write there
    abandoned.run.remove()
    return not abandoned.run.path.exists()
