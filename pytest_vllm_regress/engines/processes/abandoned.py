"""Find and remove what runs and builds left behind when their controller died. Only what is
provably ours is touched.

The proof is a name that only this harness gives: the run's tag in a process's environment, the
owner file of a run directory, the run's note of a shared-memory file, or a folder without marker in
our cache whose lock is free. The owner must be gone: same machine, same pid namespace, and no
process with its pid and start time.

Shared memory that an engine leaves in /dev/shm is removed by the first of these that still runs:

1. the nanny, when the child has ended or was killed: files that the child's processes had mapped or
open (``target_site/.../nanny.Segments``); 2. the controller, when it ends the child: files that it
saw mapped (``child_processes.py``). These are reported as leftovers if the child ended by itself; 3. the
controller, at the end of the session: files that a nanny noted in the run directory and did not
remove (``engines/session.close``); 4. the next run, or ``vllm-regress doctor --remove``: those
notes, and files that orphaned processes have mapped (``of_runs``).

Never removed: a file that another process has mapped, that existed before the child started
(compared by inode), or of another user.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from ...environments.cache import EnvironmentCache
from ...target_site.vllm_regress_target.nanny import mapped_shm
from ...util.files import remove_tree
from ...util.paths import cache_root
from ...util.rundir import AbandonedRun, Owner, State, abandoned_runs, same_namespace
from ...util.sizes import disk_usage
from . import process_tree

_DOWNLOAD_S = 86400.0


@dataclass(frozen=True)
class Remnant:
    """Something left behind.

    ``owner`` in words, ``since`` in seconds since the epoch, ``size`` in bytes. ``remove()``
    returns whether it is gone.
    """

    what: str
    name: str
    owner: str
    since: float
    size: int
    remove: Callable[[], bool] = field(repr=False, compare=False)

    @classmethod
    def at(cls, what: str, path: Path, owner: str, remove: Callable[[], bool]) -> Remnant:
        """Return the remnant for a folder. Raises ``OSError`` if it is gone."""
        return cls(what, str(path), owner, path.stat().st_mtime, disk_usage(path), remove)

    def __str__(self) -> str:
        return f"{self.what} {self.name}"

    def to_json(self, *, remove: bool) -> dict[str, str | int | float | bool]:
        """Return plain values; with ``remove``, remove it first and say whether that worked."""
        removed = remove and self.remove()
        return {
            "what": self.what,
            "name": self.name,
            "owner": self.owner,
            "since": self.since,
            "size": self.size,
            "removed": removed,
        }


def remove_abandoned() -> tuple[str, ...]:
    """Remove what abandoned runs left behind. Return one line per remnant."""
    return tuple(
        f"{'removed' if remnant.remove() else 'could not remove'} {remnant}, left by {remnant.owner}"
        for remnant in of_runs()
    )


def of_runs() -> Iterator[Remnant]:
    """Yield remnants of abandoned runs: processes first, then their shared memory, then their
    directories."""
    abandoned = list(abandoned_runs())
    orphans = list(_orphans({item.run.tag: item.controller_pid for item in abandoned}))
    segments = {
        segment: _controller(item.controller_pid)
        for item in abandoned
        for segment in item.run.segments()
    }
    for process, owner, since in orphans:
        mapped = map(Path, mapped_shm([process.pid]))
        segments |= dict.fromkeys((path for path in mapped if _changed_since(path, since)), owner)
        with suppress(psutil.Error):
            yield Remnant(
                "process",
                process_tree.describe(process),
                owner,
                process.create_time(),
                process.memory_info().rss,
                partial(_end, process),
            )
    others = set(psutil.pids()) - {process.pid for process, *_ in orphans}
    strangers = mapped_shm(others) if segments else set()
    for path, owner in segments.items():
        with suppress(OSError):
            status = path.stat()
            if str(path) not in strangers and status.st_uid == os.getuid():
                yield Remnant(
                    "shared memory",
                    str(path),
                    owner,
                    status.st_mtime,
                    status.st_size,
                    partial(_unlink, path),
                )
    for run in abandoned:
        with suppress(OSError):
            path, owner = run.run.path, _controller(run.controller_pid)
            yield Remnant.at("run directory", path, owner, partial(_remove_run, run))


def of_builds(cache: EnvironmentCache | None = None) -> Iterator[Remnant]:
    """Yield remnants of interrupted builds and downloads in the cache."""
    cache = cache or EnvironmentCache()
    for place in cache.unfinished():
        with suppress(OSError):
            remove = partial(cache.remove_unfinished, place)
            yield Remnant.at("half-built environment", place, "a build that ended early", remove)
    for place in sorted((cache_root() / "sidecars").glob(".*-*/")):
        with suppress(OSError):
            owner, remove = "a download that ended early", partial(remove_tree, place)
            download = Remnant.at("half-fetched sidecar", place, owner, remove)
            # Downloads hold no lock, but none takes a day.
            if time.time() - download.since > _DOWNLOAD_S:
                yield download


def _orphans(abandoned: Mapping[str, int]) -> Iterator[tuple[psutil.Process, str, float]]:
    """Yield this user's live processes with the tag of a run whose controller has ended, and those
    below them, each with the owner in words and the owner's start time.

    The tag names the owner. vLLM's title of a process overwrites it, and a nanny that is ended in
    the middle of its work leaves such processes to init. ``abandoned`` maps the tags of xdist
    workers' runs to their controllers: the worker may outlive its controller.
    """
    seen: set[psutil.Process] = set()
    for process, tag in process_tree.tagged():
        with suppress(OSError, psutil.Error):
            owner = Owner.from_tag(tag)
            if owner is None or not _is_own(process):
                continue
            if owner.state() is State.GONE or tag in abandoned:
                for one in filter(_is_own, (process, *process_tree.below(process))):
                    if one not in seen:
                        seen.add(one)
                        yield one, _controller(abandoned.get(tag, owner.pid)), owner.since


def _is_own(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.uids().real == os.getuid() and same_namespace(process.pid)
    return False


def _changed_since(path: Path, since: float) -> bool:
    """Return whether a file changed since the run began.

    An older one, such as a checkpoint in /dev/shm, is not the run's own.
    """
    with suppress(OSError):
        return path.lstat().st_ctime >= since
    return False


def _controller(pid: int) -> str:
    return f"process {pid}, which is gone"


def _end(process: psutil.Process) -> bool:
    return not process_tree.terminate([process], grace_s=0.0)


def _unlink(path: Path) -> bool:
    path.unlink(missing_ok=True)
    return not path.exists()


def _remove_run(abandoned: AbandonedRun) -> bool:
    process_tree.terminate(
        process_tree.with_tag(abandoned.run.tag), grace_s=0.0
    )  # a process that started since the check would write there
    abandoned.run.remove()
    return not abandoned.run.path.exists()
