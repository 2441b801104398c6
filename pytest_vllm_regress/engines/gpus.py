"""GPUs shared between all runs of the user on this machine: leased by file locks, counted by NVML, watched until their memory is free again."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from ..errors import DeadlineExceeded, Unsupported
from ..util.deadline import Deadline
from ..util.paths import cache_root
from ..util.sizes import GIB, MIB
from .device import Gpu, require_gpus

NEEDED_FREE = 2 * GIB
"""Free memory in bytes without which an engine for the tiny checkpoints does not start."""
SLACK = 256 * MIB
"""Memory in bytes that a driver may keep or take by itself."""
POLL_S = 0.2


@dataclasses.dataclass(frozen=True)
class Usage:
    """One GPU now: bytes used and free, and the processes that hold memory there (pid to bytes, as far as NVML may tell)."""

    used: int
    free: int
    holders: dict[int, int] = dataclasses.field(hash=False)

    def describe(self) -> str:
        """Who holds what, by pid and name."""
        told = (f"process {pid} ({_name(pid)}): {held / GIB:.1f} GiB" for pid, held in sorted(self.holders.items()))
        return ", ".join(told) or "no process that NVML tells"


class GpuLease:
    """GPUs of our own until ``release``. ``indices`` count as NVML does, in the order of the PCI bus."""

    def __init__(self, gpus: Sequence[Gpu], locks: Sequence[FileLock], before: dict[int, int]) -> None:
        self.indices = tuple(gpu.index for gpu in gpus)
        self._locks = locks
        self._before = before

    @property
    def environment(self) -> dict[str, str]:
        """What makes CUDA see these GPUs and no others. Indices, not UUIDs: vLLM before 0.9 takes only numbers there."""
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, self.indices))}

    def release(self, deadline: Deadline, look: Callable[[int], Usage] | None = None) -> tuple[str, ...]:
        """Wait until the memory is as free as it was, then give the GPUs back. Returns who still held memory when the deadline came."""
        look = look or usage
        try:
            while True:
                held = {index: look(index) for index in self.indices}
                late = {index: now for index, now in held.items() if now.used > self._before[index] + SLACK}
                if not late:
                    return ()
                if deadline.passed:
                    return tuple(
                        f"GPU {index}: {(now.used - self._before[index]) / GIB:.1f} GiB not released; {now.describe()}"
                        for index, now in late.items()
                    )
                time.sleep(min(POLL_S, deadline.left_s))  # NVML has no event for memory
        finally:
            for lock in self._locks:
                lock.release()


def lease_gpus(
    count: int, deadline: Deadline, folder: Path | None = None, look: Callable[[int], Usage] | None = None
) -> GpuLease:
    """Lease ``count`` GPUs, all or none; waits for other runs until the deadline.

    Raises ``Unsupported`` where the machine has fewer, or where those that are free have too little memory left, and names who holds it;
    ``DeadlineExceeded`` where other runs kept theirs.
    """
    look = look or usage
    gpus = visible(require_gpus())
    if len(gpus) < count:
        raise Unsupported(
            f"needs {count} GPUs; {len(gpus)} can be used here: {', '.join(f'{g.index} ({g.name})' for g in gpus) or 'none'}"
        )
    folder = folder or _folder()
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        with contextlib.ExitStack() as held:
            taken = [(gpu, lock) for gpu in gpus if (lock := _try(folder / f"{gpu.index}.lock", held)) is not None]
            now = {gpu.index: look(gpu.index) for gpu, _ in taken}
            roomy = [(gpu, lock) for gpu, lock in taken if now[gpu.index].free >= NEEDED_FREE][:count]
            if len(roomy) == count:
                held.pop_all()
                for _, lock in (pair for pair in taken if pair not in roomy):
                    lock.release()
                return GpuLease(
                    [gpu for gpu, _ in roomy],
                    [lock for _, lock in roomy],
                    {gpu.index: now[gpu.index].used for gpu, _ in roomy},
                )
            if len(taken) == len(gpus):  # no other run of ours is to be waited for
                full = "; ".join(
                    f"GPU {index}: {each.free / GIB:.1f} GiB free, {each.describe()}" for index, each in now.items()
                )
                raise Unsupported(f"needs {count} GPUs with {NEEDED_FREE / GIB:g} GiB free: {full}")
        if deadline.passed:
            raise DeadlineExceeded(
                f"no {count} of {len(gpus)} GPUs became free: other runs hold them", phase=deadline.phase
            )
        time.sleep(min(POLL_S, deadline.left_s))  # several locks at once cannot be waited for otherwise


def visible(gpus: Sequence[Gpu], setting: str | None = None) -> list[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES allows, in its order; all where it is not set. It may hold indices and UUIDs."""
    setting = os.environ.get("CUDA_VISIBLE_DEVICES") if setting is None else setting
    if setting is None:
        return list(gpus)
    named = {**{str(gpu.index): gpu for gpu in gpus}, **{gpu.uuid: gpu for gpu in gpus if gpu.uuid}}
    return [named[word.strip()] for word in setting.split(",") if word.strip() in named]


def usage(index: int) -> Usage:
    """What NVML says of one GPU now."""
    with _nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        holders = {}
        with contextlib.suppress(nvml.NVMLError):  # not told inside some containers
            holders = {int(p.pid): int(p.usedGpuMemory or 0) for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        return Usage(int(memory.used), int(memory.free), holders)


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    import pynvml

    pynvml.nvmlInit()
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _try(path: Path, held: contextlib.ExitStack) -> FileLock | None:
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    held.callback(lock.release)
    return lock


def _folder() -> Path:
    return cache_root() / "gpus"


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "of another container, or gone"
