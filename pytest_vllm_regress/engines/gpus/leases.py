"""Which GPUs are used, and how they are shared: leases, by file locks between all runs of the user on
this machine, a lock for each UUID. NVML tells the free memory, and tickets are served by their time.
Idle engines give way between tests (``Session.give_way``).

A lease ends when its engine's memory is free again.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from ...errors import DeviceBusy, Unsupported
from ...util.deadline import Deadline
from ...util.files import peek
from ...util.paths import writable_root
from ...util.sizes import GIB, MIB
from .nvml import Gpu, Usage, usage
from .visible import ORDER, PCI, VISIBLE

_MAX_WANTED = 64 * 1024

SLACK = 256 * MIB
"""Memory in bytes by which a GPU's use may vary without an engine."""
POLL_S = 0.2
UNATTRIBUTED_MEMORY_WAIT_S = 5.0
"""Seconds to wait for memory whose owner NVML does not report.

It may belong to another tenant and never be released.
"""
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # include/linux/proc_ns.h: PROC_PID_INIT_INO

QueryUsage = Callable[[str], Usage | str]
logger = logging.getLogger("vllm_regress.gpus")


class GpuLeases:
    """The GPUs that one run holds. A GPU is locked against other runs while an engine of this run
    uses it; engines of one run may share it.

    ``runs``: how many runs may use a GPU at the same time. Those with 1 use it alone, others share
    it with runs that allow it, too. A run that joins others needs the memory of one engine more for
    each of them, because they may be about to start one.

    ``query_usage`` queries NVML and ``report`` shows a line to the user. ``same_pids`` tells
    whether NVML's pids are of this process's namespace (default: detected). Locks are named by
    UUID, because indices differ between containers.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        query_usage: QueryUsage = usage,
        report: Callable[[str], None] = lambda line: None,
        same_pids: bool | None = None,
        runs: int = 1,
    ) -> None:
        self.runs = runs
        self.query_usage = query_usage
        self.same_pids = _in_first_namespace() if same_pids is None else same_pids
        self._report = report
        self._folder = folder or writable_root() / "gpus"
        self._locks: dict[str, FileLock] = {}
        self._others: dict[str, int] = {}
        """Other runs on a device when this one locked it."""
        self._users: Counter[str] = Counter()

    def lease(
        self,
        devices: Sequence[Gpu],
        count: int,
        needed: Callable[[Gpu], int],
        deadline: Deadline,
        make_room: Callable[[], bool] = lambda: False,
    ) -> GpuLease:
        """Lease ``count`` of ``devices``, all or none, each with ``needed`` bytes free.

        If they are not free, calls ``make_room`` to end an idle engine of this run until it returns
        False, then waits for other runs. Raises ``Unsupported`` if the machine never has enough,
        ``DeviceBusy`` if others kept the GPUs until the deadline.
        """
        self._check_possible(devices, count, needed)
        logger.debug("leasing %s of %s GPUs, within %.0f s", count, len(devices), deadline.left_s)
        self._folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as waiting:
            queued = False
            ticket = _ticket()
            while True:
                expired = deadline.passed
                lease, refused = self._try(devices, count, needed, ticket)
                if lease is not None:
                    logger.info(
                        "leased GPUs %s", ", ".join(device.describe() for device in lease.devices)
                    )
                    return lease
                if make_room():
                    logger.info("ended an idle engine to free a GPU")
                    continue
                why = f"{count} of {len(devices)} GPUs wanted: {'; '.join(refused)}"
                if expired:
                    raise DeviceBusy(
                        f"waited {deadline.allowed_s:g} s for GPUs. {why}", phase=deadline.phase
                    )
                if not queued:
                    self._report(f"waiting for GPUs, at most {deadline.left_s:.0f} s. {why}")
                    waiting.enter_context(self._queue(devices, ticket))
                    queued = True
                time.sleep(
                    min(POLL_S, deadline.left_s)
                )  # there is no blocking wait for NVML or for several locks

    def requested_by_others(self) -> bool:
        """Return whether another run waits for a GPU that this run holds."""
        return any(self._users[uuid] for uuid in self._requested(_ticket()))

    def _requested(self, before: str) -> set[str]:
        """Return the GPUs requested by tickets older than ``before``.

        Requests are served by age. Otherwise a run that yields its GPUs could take them back at
        once.
        """
        requested: set[str] = set()
        for entry in (self._folder / "waiting").glob("*.lock"):
            if entry.stem >= before:
                continue
            lock = FileLock(entry)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                requested.update(peek(entry.with_suffix(".gpus"), _MAX_WANTED).split())
            else:  # the waiting process was killed
                for path in (entry, entry.with_suffix(".gpus")):
                    path.unlink(missing_ok=True)
                lock.release()
        return requested

    def release_device(self, device: Gpu) -> None:
        """Count one engine less on ``device``. After the last one, unlock it for other runs."""
        self._users[device.uuid] -= 1
        self._unlock_unused()
        logger.info("released GPU %s", device.describe())

    def describe(self, current: Usage) -> str:
        """Describe the processes that hold memory.

        Names them only if NVML's pids are of this process's namespace.
        """
        if not current.holders:
            return "NVML reports no process"
        if not self.same_pids:
            return f"{len(current.holders)} processes of another pid namespace, {sum(current.holders.values()) / GIB:.1f} GiB"
        return ", ".join(
            f"process {pid} ({_name(pid)}): {memory / GIB:.1f} GiB"
            for pid, memory in sorted(current.holders.items())
        )

    @staticmethod
    def _check_possible(devices: Sequence[Gpu], count: int, needed: Callable[[Gpu], int]) -> None:
        names = ", ".join(device.describe() for device in devices) or "none"
        if len(devices) < count:
            raise Unsupported(
                f"needs {count} GPUs; {len(devices)} can be used here: {names}",
                needs=f"{count} GPUs",
                device="gpu",
            )
        if count > 1 and any(device.part for device in devices):
            raise Unsupported(
                f"needs {count} GPUs; CUDA shows a process only one MIG slice, of {names}",
                needs=f"{count} whole GPUs",
                device="gpu",
            )
        large = [device for device in devices if needed(device) <= device.memory]
        if len(large) < count:
            sizes = ", ".join(
                f"{d.describe()} {d.memory / GIB:.1f} GiB, needs {needed(d) / GIB:.1f}"
                for d in devices
            )
            raise Unsupported(
                f"needs {count} GPUs with more memory: {sizes}",
                needs="more GPU memory",
                device="gpu",
            )

    def _try(
        self,
        devices: Sequence[Gpu],
        count: int,
        needed: Callable[[Gpu], int],
        ticket: str,
    ) -> tuple[GpuLease | None, list[str]]:
        """Return a lease, or the reason for each refused GPU.

        Prefers unused GPUs over those with an engine of this run.
        """
        refused: list[str] = []
        chosen: dict[Gpu, Usage] = {}
        requested = self._requested(ticket)
        try:
            for device in sorted(devices, key=lambda device: self._users[device.uuid] > 0):
                if len(chosen) == count:
                    break
                current = self._room_on(device, needed(device), requested)
                if isinstance(current, Usage):
                    chosen[device] = current
                else:
                    refused.append(f"GPU {device.index}: {current}")
            if len(chosen) < count:
                return None, refused
            self._users.update(device.uuid for device in chosen)
        finally:
            self._unlock_unused()
        return GpuLease(self, {d: chosen[d] for d in devices if d in chosen}), []

    def _room_on(self, device: Gpu, needed: int, requested: Collection[str]) -> Usage | str:
        """Return the use of a device, which is locked for this run, or why an engine cannot get
        ``needed`` bytes there."""
        if self._users[device.uuid]:
            if device.compute_mode == "exclusive process":
                return "an engine of this run is on it, and its compute mode is exclusive"
        elif device.uuid in requested:
            return "another run has waited longer for it"
        elif not self._lock(device):
            return "held by another run"
        current = self.query_usage(device.uuid)
        wanted = needed * (1 + self._others[device.uuid])
        if isinstance(current, Usage) and current.free < wanted:
            return f"{current.free / GIB:.1f} GiB free, {wanted / GIB:.1f} needed; {self.describe(current)}"
        return current

    def _lock(self, device: Gpu) -> bool:
        """Lock a device: as a whole, or one of its places. Places are taken and counted by the run
        that has locked the whole for that moment."""
        name = device.uuid.replace("/", "_")
        whole = _acquired(self._folder / f"{name}.lock")
        if whole is None:
            return False
        known = self._folder.glob(f"{name}.place*")
        own = (self._folder / f"{name}.place{number}" for number in range(self.runs))
        places = [_acquired(path) for path in sorted({*known, *own})]
        free = [place for place in places if place is not None]
        others = len(places) - len(free)
        kept = None if others >= self.runs else whole if self.runs == 1 else free[0]
        for lock in (*free, whole):
            if lock is not kept:
                lock.release()
        if kept is not None:
            self._locks[device.uuid] = kept
            self._others[device.uuid] = others
        return kept is not None

    def _unlock_unused(self) -> None:
        for uuid in [uuid for uuid in self._locks if not self._users[uuid]]:
            self._locks.pop(uuid).release()

    @contextmanager
    def _queue(self, devices: Sequence[Gpu], ticket: str) -> Iterator[None]:
        """Wait in the queue:

        ``requested_by_others`` is true meanwhile for runs that hold one of ``devices``.
        """
        entry = self._folder / "waiting" / ticket
        entry.parent.mkdir(exist_ok=True)
        entry.with_suffix(".gpus").write_text(" ".join(device.uuid for device in devices))
        with FileLock(entry.with_suffix(".new")) as lock:
            # Visible once it is locked: to other runs an unlocked entry is one of a killed process.
            Path(lock.lock_file).rename(entry.with_suffix(".lock"))
            try:
                yield
            finally:
                for suffix in (".gpus", ".lock"):
                    entry.with_suffix(suffix).unlink(missing_ok=True)


class GpuLease:
    """The GPUs of one engine, until ``release``."""

    def __init__(self, leases: GpuLeases, chosen: Mapping[Gpu, Usage]) -> None:
        self.devices = tuple(chosen)
        self.before = tuple(chosen.values())
        self._leases = leases
        self._pids: frozenset[int] = frozenset()
        self._same_pids = leases.same_pids

    @property
    def environment(self) -> dict[str, str]:
        """Variables that limit CUDA to these GPUs, in NVML's order."""
        return {ORDER: PCI, VISIBLE: ",".join(device.selector for device in self.devices)}

    def claim(self, pids: Collection[int]) -> None:
        """Set the engine's processes, while it runs.

        ``release`` waits for their memory, whatever else uses the GPU.
        """
        self._pids = frozenset(pids)
        for device in self.devices:
            current = self._leases.query_usage(device.uuid)
            if (
                isinstance(current, Usage)
                and current.holders
                and self._pids & current.holders.keys()
            ):
                self._same_pids = True  # NVML reports pids of this namespace

    def release(self, deadline: Deadline) -> tuple[str, ...]:
        """Wait until the engine's processes hold no memory, then release the GPUs. Return
        descriptions of what they still held at the deadline.

        If NVML does not report the owners of memory, waits a few seconds until as much is free as
        before, and reports nothing.
        """
        unattributed = Deadline.after(
            deadline.phase, min(UNATTRIBUTED_MEMORY_WAIT_S, deadline.left_s), deadline.clock
        )
        try:
            while True:
                expired = deadline.passed
                leaks, unclear = [], False
                for device, before in zip(self.devices, self.before, strict=True):
                    current = self._leases.query_usage(device.uuid)
                    if isinstance(current, Usage):
                        own = self._held(current, before)
                        unclear |= own is None and current.used > before.used + SLACK
                        if own:
                            leaks.append((device, own))
                if not leaks and (not unclear or unattributed.passed):
                    return ()
                if expired:
                    return tuple(f"GPU {device.index}: {_sum(own)}" for device, own in leaks)
                time.sleep(min(POLL_S, deadline.left_s))  # NVML has no event for released memory
        finally:
            for device in self.devices:
                self._leases.release_device(device)

    def _held(self, current: Usage, before: Usage) -> dict[int, int] | None:
        """Return the engine's memory by pid; None if unknown.

        Includes new processes that are dead, which the driver has not noticed yet.
        """
        if current.holders is None or not self._same_pids:
            return None
        earlier = before.holders or {}
        return {
            pid: memory
            for pid, memory in current.holders.items()
            if pid in self._pids or (pid not in earlier and not psutil.pid_exists(pid))
        }


def _acquired(path: Path) -> FileLock | None:
    """Return the lock on a file; None if another run holds it."""
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def _ticket() -> str:
    """Return a unique name that sorts by time."""
    return f"{time.time_ns():020d}-{os.getpid()}-{secrets.token_hex(4)}"


def _sum(memory: dict[int, int]) -> str:
    names = ", ".join(f"process {pid} ({_name(pid)})" for pid in sorted(memory))
    return f"{sum(memory.values()) / GIB:.1f} GiB not released by {names}"


def _in_first_namespace() -> bool:
    """Return whether this process is in the initial pid namespace, whose pids NVML reports.

    A container has another one.
    """
    with suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino == _FIRST_PID_NAMESPACE
    return False


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "ended"
