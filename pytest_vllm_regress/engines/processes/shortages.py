"""Resources that may have run out when an engine failed: /dev/shm, the container's memory, open
files.

vLLM then says "See root cause above" although nothing stands above: a process that writes to a full
/dev/shm is ended by SIGBUS, and one for which the container has no memory by SIGKILL. Neither can
log anything.
"""

from __future__ import annotations

import os
import re
import resource
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...util.files import peek
from ...util.sizes import MIB
from ..gpus.fit import LEAST_SHM

FILES = 65_535
"""Files that vLLM asks to have open (``set_ulimit`` in its utilities)."""
LEAST_FILES = 1024
"""The usual limit, enough for small engines.

Below it sockets fail with errors that do not mention files.
"""
_FULL = 1 * MIB
_NO_SPACE = re.compile(
    r"No space left on device|Errno 28|\bENOSPC\b|Bus error|\bSIGBUS\b|exit ?code:? -7\b|signal:? 7\b",
    re.I,
)
_NO_FILES = re.compile(r"Too many open files|Errno 24|\bEMFILE\b", re.I)
_WARNING = re.compile(r"can cause fd limit errors like ?`[^`]*`")
"""vLLM names the error at every start below ``FILES``, before there is one."""


@dataclass(frozen=True)
class Room:
    """Free resources at one moment, in bytes; None if unknown.

    ``oom_kills``: processes that the kernel has killed for lack of memory.
    """

    shm_free: int | None
    shm_size: int | None
    memory_limit: int | None
    oom_kills: int
    files: int

    def __str__(self) -> str:
        parts = [f"files {self.files}, processes ended for memory {self.oom_kills}"]
        if self.shm_free is not None and self.shm_size is not None:
            parts.insert(0, f"/dev/shm {_mib(self.shm_free)} of {_mib(self.shm_size)} free")
        if self.memory_limit is not None:
            parts.append(f"memory.max {_mib(self.memory_limit)}")
        return ", ".join(parts)


def available(
    shm: Path = Path("/dev/shm"),
    cgroups: Path = Path("/sys/fs/cgroup"),
    own: Path = Path("/proc/self/cgroup"),
) -> Room:
    """Return the resources that this process and those it starts have now."""
    free = size = None
    with suppress(OSError):
        place = os.statvfs(shm)
        free, size = place.f_frsize * place.f_bavail, place.f_frsize * place.f_blocks
    limit, kills = _memory(cgroups, own)
    return Room(free, size, limit, kills, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def all_memory(
    cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int:
    """Return the memory of the machine or the container, whichever is smaller, in bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(total, _memory(cgroups, own)[0] or total)


def shortage(
    before: Room, now: Room, log: str, *, status: int | None = None, silent: bool = False
) -> str:
    """Return which resource the failure may be due to, as a sentence; empty if none was short.

    ``log``: what the processes wrote. ``status``: exit status of the first one (negative for a
    signal). ``silent``: the log has no error.
    """
    if now.oom_kills > before.oom_kills:
        limit = f" (memory.max is {_mib(now.memory_limit)})" if now.memory_limit is not None else ""
        return (
            f"out of memory: the kernel has ended {now.oom_kills - before.oom_kills} of the container's processes since this one began{limit}. "
            "Give the container more, or the engine less (max_model_len, kv_cache_memory_bytes, fewer workers)"
        )
    if _NO_FILES.search(_WARNING.sub("", log)) or (silent and now.files < LEAST_FILES):
        return f"too many open files: `ulimit -n` is {now.files}, vLLM asks for {FILES} (`ulimit -n {FILES}`, in a container --ulimit)"
    if now.shm_free is not None and now.shm_size is not None:
        free = min(now.shm_free, now.shm_free if before.shm_free is None else before.shm_free)
        signs = silent or status == -signal.SIGBUS or _NO_SPACE.search(log)
        if free < _FULL or (free < LEAST_SHM and signs):
            return (
                f"/dev/shm is full: {_mib(free)} of {_mib(now.shm_size)} were free, and vLLM's processes share memory there; two workers "
                f"need at least {_mib(LEAST_SHM)}. Give it more (in a container --shm-size or --ipc=host), or remove what lies in it "
                "(`vllm-regress doctor`)"
            )
    return ""


def _memory(cgroups: Path, own: Path) -> tuple[int | None, int]:
    """Return the lowest memory limit from our control group upwards, and how many of our processes
    the kernel has killed for it.

    Version 2: ``memory.max`` and ``memory.events``; version 1: ``memory.limit_in_bytes`` and
    ``memory.oom_control``.
    """
    limits: list[int] = []
    kills = 0
    for line in peek(own, 64 * 1024).splitlines() if own.is_file() else ():
        _, kinds, path = (*line.split(":", 2), "", "")[:3]
        if kinds not in ("", "memory"):
            continue
        root = cgroups / kinds
        place = root / path.lstrip("/")
        # In its own namespace a container may see a path that does not exist: its root is then its
        # group.
        for group in dict.fromkeys(
            (place, *(parent for parent in place.parents if parent.is_relative_to(root)), root)
        ):
            for name in ("memory.max", "memory.limit_in_bytes"):
                with suppress(ValueError):
                    limits.append(int(peek(group / name, 100)))
        for group in (place, root):
            counted = [
                _counter(peek(group / name, 4096))
                for name in ("memory.events", "memory.oom_control")
            ]
            if any(counted):
                kills += max(counted)
                break
    real = [limit for limit in limits if limit < 2**60]  # version 1 says "none" so
    return min(real, default=None), kills


def _counter(text: str) -> int:
    match = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else 0


def _mib(size: int | None) -> str:
    return f"{(size or 0) / MIB:.0f} MiB"
