"""GPUs shared between all runs of the user on this machine: leased by file locks, and watched until what an engine held there is free again."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from ..errors import DeviceBusy, Unsupported
from ..util.deadline import Deadline
from ..util.files import peek
from ..util.paths import writable_root
from ..util.sizes import GIB, MIB
from .nvml import Usage, usage
from .visible import ORDER, PCI, VISIBLE, CudaDevice

_MAX_WANTED = 64 * 1024

SLACK = 256 * MIB
"""Memory in bytes that a driver may keep or take by itself."""
POLL_S = 0.2
UNTOLD_S = 5.0
"""So long memory is waited for where NVML does not tell whose it is: another tenant's may stay for ever."""
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # include/linux/proc_ns.h: PROC_PID_INIT_INO

Look = Callable[[str], Usage | str]


class GpuLeases:
    """The GPUs that one run holds. A GPU is locked against other runs as long as an engine of ours is on it; engines of one run may share it.

    ``look`` asks NVML, ``tell`` gets a line when others are waited for, ``same_pids`` says whether NVML's pids are this process's
    (None: found out). Locks are named by UUID: numbers differ between containers.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        look: Look = usage,
        tell: Callable[[str], None] = lambda line: None,
        same_pids: bool | None = None,
    ) -> None:
        self.look = look
        self.same_pids = _in_first_namespace() if same_pids is None else same_pids
        self._tell = tell
        self._folder = folder or writable_root() / "gpus"
        self._locks: dict[str, FileLock] = {}
        self._users: dict[str, int] = {}

    def lease(
        self,
        devices: Sequence[CudaDevice],
        count: int,
        needed: Callable[[CudaDevice], int],
        deadline: Deadline,
        make_room: Callable[[], bool] = lambda: False,
    ) -> GpuLease:
        """Lease ``count`` of ``devices``, all or none, each with ``needed`` bytes free.

        Where that cannot be at once, ``make_room`` is asked to end an engine of ours (False: there is none to end); then others are waited for.
        Raises ``Unsupported`` where the machine can never give it, ``DeviceBusy`` where others kept it until the deadline.
        """
        self._check_possible(devices, count, needed)
        self._folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as waiting:
            told = False
            ticket = _ticket()
            while True:
                lease, refused = self._try(devices, count, needed, ticket)
                if lease is not None:
                    return lease
                if make_room():
                    continue
                why = f"{count} of {len(devices)} GPUs wanted: {'; '.join(refused)}"
                if deadline.passed:
                    raise DeviceBusy(f"waited {deadline.allowed_s:g} s for GPUs. {why}", phase=deadline.phase)
                if not told:
                    self._tell(f"waiting for GPUs, at most {deadline.left_s:.0f} s. {why}")
                    waiting.enter_context(self._queue(devices, ticket))
                    told = True
                time.sleep(min(POLL_S, deadline.left_s))  # neither NVML nor several locks at once can be waited for

    def wanted_by_others(self) -> bool:
        """Another run waits for a GPU that we hold."""
        return not self._users.keys().isdisjoint(self._wanted(_ticket()))

    def _wanted(self, before: str) -> set[str]:
        """The GPUs that others wait for since before that ticket: first come, first served, or the run that gives way would take them again."""
        wanted: set[str] = set()
        for entry in (self._folder / "waiting").glob("*.lock"):
            if entry.stem >= before:
                continue
            lock = FileLock(entry)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                wanted.update(peek(entry.with_suffix(".gpus"), _MAX_WANTED).split())
            else:  # who waited was killed
                for path in (entry, entry.with_suffix(".gpus")):
                    path.unlink(missing_ok=True)
                lock.release()
        return wanted

    def give_back(self, device: CudaDevice) -> None:
        """One engine on ``device`` less; after the last one others may have it."""
        self._users[device.uuid] -= 1
        if not self._users[device.uuid]:
            del self._users[device.uuid]
            self._locks.pop(device.uuid).release()

    def describe(self, now: Usage) -> str:
        """Who holds what, as far as it can be known: pids of NVML's are named only where they are this process's namespace's."""
        if not now.holders:
            return "no process that NVML tells"
        if not self.same_pids:
            return f"{len(now.holders)} processes, {sum(now.holders.values()) / GIB:.1f} GiB, not named: pids are of another namespace"
        return ", ".join(
            f"process {pid} ({_name(pid)}): {held / GIB:.1f} GiB" for pid, held in sorted(now.holders.items())
        )

    @staticmethod
    def _check_possible(devices: Sequence[CudaDevice], count: int, needed: Callable[[CudaDevice], int]) -> None:
        named = ", ".join(device.describe() for device in devices) or "none"
        if len(devices) < count:
            raise Unsupported(f"needs {count} GPUs; {len(devices)} can be used here: {named}", needs=f"{count} GPUs")
        if count > 1 and any(device.part for device in devices):
            raise Unsupported(
                f"needs {count} GPUs; CUDA shows a process one MIG slice only, of {named}", needs=f"{count} whole GPUs"
            )
        large = [device for device in devices if needed(device) <= device.memory]
        if len(large) < count:
            sizes = ", ".join(f"{d.describe()} {d.memory / GIB:.1f} GiB, needs {needed(d) / GIB:.1f}" for d in devices)
            raise Unsupported(f"needs {count} GPUs with more memory: {sizes}", needs="more GPU memory")

    def _try(
        self, devices: Sequence[CudaDevice], count: int, needed: Callable[[CudaDevice], int], ticket: str
    ) -> tuple[GpuLease | None, list[str]]:
        """A lease, or why each GPU is refused. GPUs that nobody uses come first, then those where an engine of ours is already."""
        refused: list[str] = []
        chosen: list[tuple[CudaDevice, Usage]] = []
        wanted = self._wanted(ticket)
        with contextlib.ExitStack() as locked:
            fresh: dict[str, FileLock] = {}
            for device in sorted(devices, key=lambda each: each.uuid in self._users):
                if len(chosen) == count:
                    break
                ours = device.uuid in self._users
                if ours and device.compute_mode == "exclusive process":
                    refused.append(
                        f"GPU {device.index}: an engine of this run is on it, and its compute mode is exclusive"
                    )
                    continue
                if not ours and device.uuid in wanted:
                    refused.append(f"GPU {device.index}: another run waits for it, since longer")
                    continue
                if not ours and not self._lock(device, fresh, locked):
                    refused.append(f"GPU {device.index}: held by another run")
                    continue
                now = self.look(device.uuid)
                if isinstance(now, str):
                    refused.append(f"GPU {device.index}: {now}")
                elif now.free < needed(device):
                    refused.append(
                        f"GPU {device.index}: {now.free / GIB:.1f} GiB free, {needed(device) / GIB:.1f} needed; {self.describe(now)}"
                    )
                else:
                    chosen.append((device, now))
            if len(chosen) < count:
                return None, refused
            locked.pop_all()
        places = {device.uuid for device, _ in chosen}
        for uuid, lock in fresh.items():
            if uuid in places:
                self._locks[uuid] = lock
            else:
                lock.release()
        for uuid in places:
            self._users[uuid] = self._users.get(uuid, 0) + 1
        order = {device.uuid: place for place, device in enumerate(devices)}
        return GpuLease(self, sorted(chosen, key=lambda pair: order[pair[0].uuid])), []

    def _lock(self, device: CudaDevice, fresh: dict[str, FileLock], locked: contextlib.ExitStack) -> bool:
        lock = FileLock(self._folder / f"{device.uuid.replace('/', '_')}.lock", thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        fresh[device.uuid] = lock
        locked.callback(lock.release)
        return True

    @contextlib.contextmanager
    def _queue(self, devices: Sequence[CudaDevice], ticket: str) -> Iterator[None]:
        """While it lasts, ``wanted_by_others`` is true for who holds one of ``devices``."""
        place = self._folder / "waiting" / ticket
        place.parent.mkdir(exist_ok=True)
        place.with_suffix(".gpus").write_text(" ".join(device.uuid for device in devices))
        with FileLock(place.with_suffix(".lock")):
            try:
                yield
            finally:
                for suffix in (".gpus", ".lock"):
                    place.with_suffix(suffix).unlink(missing_ok=True)


class GpuLease:
    """GPUs of one engine until ``release``."""

    def __init__(self, leases: GpuLeases, chosen: Sequence[tuple[CudaDevice, Usage]]) -> None:
        self.devices = tuple(device for device, _ in chosen)
        self.before = tuple(usage for _, usage in chosen)
        self._leases = leases
        self._pids: frozenset[int] = frozenset()
        self._same_pids = leases.same_pids

    @property
    def environment(self) -> dict[str, str]:
        """What makes CUDA see these GPUs and no others, counted as NVML counts."""
        return {ORDER: PCI, VISIBLE: ",".join(device.selector for device in self.devices)}

    def claim(self, pids: Collection[int]) -> None:
        """The engine's processes, while it lives: memory of theirs is waited for at its end, whoever else uses the GPU."""
        self._pids = frozenset(pids)
        for device in self.devices:
            now = self._leases.look(device.uuid)
            if isinstance(now, Usage) and now.holders and self._pids & now.holders.keys():
                self._same_pids = True  # as NVML says it here, pids are ours

    def release(self, deadline: Deadline) -> tuple[str, ...]:
        """Wait until our processes hold no memory, then give the GPUs back. Returns, in words, what they still held when the deadline came.

        Where NVML does not tell whose memory it is, a device as free as before is waited for, a few seconds, and nobody is charged.
        """
        untold = Deadline.after(deadline.phase, min(UNTOLD_S, deadline.left_s), deadline.clock)
        try:
            while True:
                held = [
                    (device, self._held(now, before) if isinstance(now, Usage) else None, now, before)
                    for device, before in zip(self.devices, self.before, strict=True)
                    for now in [self._leases.look(device.uuid)]
                ]
                late = [(device, ours) for device, ours, _, _ in held if ours]
                unclear = [
                    now
                    for _, ours, now, before in held
                    if ours is None and isinstance(now, Usage) and now.used > before.used + SLACK
                ]
                if not late and (not unclear or untold.passed):
                    return ()
                if deadline.passed:
                    return tuple(f"GPU {device.index}: {_sum(ours)}" for device, ours in late)
                time.sleep(min(POLL_S, deadline.left_s))  # NVML has no event for memory
        finally:
            for device in self.devices:
                self._leases.give_back(device)

    def _held(self, now: Usage, before: Usage) -> dict[int, int] | None:
        """Memory of ours by process; None where it cannot be told. Ours is also who came since and is dead: the driver has not noticed yet."""
        if now.holders is None or not self._same_pids:
            return None
        known = before.holders or {}
        return {
            pid: held
            for pid, held in now.holders.items()
            if pid in self._pids or (pid not in known and not psutil.pid_exists(pid))
        }


def _ticket() -> str:
    """Sorts by the time it was drawn."""
    return f"{time.time_ns():020d}-{os.getpid()}-{secrets.token_hex(4)}"


def _sum(ours: dict[int, int]) -> str:
    named = ", ".join(f"process {pid} ({_name(pid)})" for pid in sorted(ours))
    return f"{sum(ours.values()) / GIB:.1f} GiB not released by {named}"


def _in_first_namespace() -> bool:
    """NVML counts processes in the machine's first namespace, which is not a container's."""
    with contextlib.suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino == _FIRST_PID_NAMESPACE
    return False


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "ended"
