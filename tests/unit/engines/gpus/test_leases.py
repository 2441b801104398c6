"""Leases of GPUs: between runs, all or none, in order of requests, by memory, and the wait at the
end."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import UnixFileLock

from pytest_vllm_regress.engines.gpus import leases
from pytest_vllm_regress.engines.gpus.leases import GpuLease, GpuLeases
from pytest_vllm_regress.engines.gpus.nvml import Gpu, Usage
from pytest_vllm_regress.errors import DeviceBusy, Unsupported
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.sizes import GIB

DEAD = 2**22 + 7
"""Above the kernel's limit, so no process has this pid."""


class Card:
    """GPUs of 80 GiB.

    ``held`` has bytes by GPU and pid, ``other`` bytes of processes that NVML does not report.
    """

    def __init__(self, count: int) -> None:
        self.devices = [
            Gpu(index, "stand-in", 80 * GIB, f"GPU-{index}", (9, 0)) for index in range(count)
        ]
        self.held: dict[str, dict[int, int]] = {device.uuid: {} for device in self.devices}
        self.other = 0
        self.tells = True

    def look(self, uuid: str) -> Usage | str:
        used = sum(self.held[uuid].values()) + self.other
        return Usage(used, 80 * GIB - used, dict(self.held[uuid]) if self.tells else None)


@pytest.fixture
def card() -> Card:
    return Card(2)


@pytest.fixture
def run(card: Card, tmp_path: Path) -> Callable[[], GpuLeases]:
    """Return a factory of runs on the same machine."""
    return lambda: GpuLeases(tmp_path, query_usage=card.look, same_pids=True)


def take(
    run: GpuLeases, card: Card, count: int = 1, seconds: float = 0.3, needed: int = 4 * GIB
) -> GpuLease:
    return run.lease(card.devices, count, lambda device: needed, soon(seconds))


def soon(seconds: float = 0.3) -> Deadline:
    return Deadline.after("start", seconds)


def indices(lease: GpuLease) -> list[int]:
    return [device.index for device in lease.devices]


def test_two_runs_never_share(card: Card, run: Callable[[], GpuLeases]) -> None:
    first, second = take(run(), card), take(run(), card)
    assert {*indices(first), *indices(second)} == {0, 1}
    assert first.environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}
    with pytest.raises(
        DeviceBusy, match=r"waited 0\.3 s for GPUs.*GPU 0: held by another run; GPU 1: held"
    ) as caught:
        take(run(), card)
    assert caught.value.kind == "limit"  # never a hang
    assert first.release(soon()) == ()
    assert indices(take(run(), card)) == [0]


def test_a_gpu_is_identified_by_uuid_not_by_index(card: Card, run: Callable[[], GpuLeases]) -> None:
    """Containers count their GPUs from 0, so locks named by index would allow two runs on one GPU."""
    first = take(run(), card)
    assert [device.uuid for device in first.devices] == ["GPU-0"]
    card.devices = [
        dataclasses.replace(card.devices[1], index=0),
        dataclasses.replace(card.devices[0], index=1),
    ]
    second = take(run(), card)
    assert [device.uuid for device in second.devices] == ["GPU-1"]
    with pytest.raises(DeviceBusy):
        take(run(), card)


def test_two_engines_of_one_run_share_a_gpu(card: Card, run: Callable[[], GpuLeases]) -> None:
    own_run = run()
    leases = [take(own_run, card) for _ in range(3)]
    assert [indices(lease) for lease in leases] == [[0], [1], [0]]  # first those that are free
    leases[0].release(soon())
    with pytest.raises(DeviceBusy):
        take(run(), card, count=2)
    leases[2].release(soon())
    assert indices(take(run(), card)) == [0]


def test_an_exclusive_gpu_is_not_shared(card: Card, run: Callable[[], GpuLeases]) -> None:
    card.devices = [Gpu(0, "x", 80 * GIB, "GPU-0", compute_mode="exclusive process")]
    own_run = run()
    take(own_run, card)
    with pytest.raises(
        DeviceBusy, match="an engine of this run is on it, and its compute mode is exclusive"
    ):
        take(own_run, card)


def test_idle_engines_end_before_waiting_for_other_runs(
    card: Card, run: Callable[[], GpuLeases]
) -> None:
    own_run = run()
    pooled = take(own_run, card, needed=60 * GIB)
    card.held["GPU-0"][os.getpid()] = 60 * GIB
    other = take(run(), card)
    assert indices(other) == [1]

    def end_idle() -> bool:
        if not card.held["GPU-0"]:
            return False
        card.held["GPU-0"].clear()
        pooled.release(soon())
        return True

    lease = own_run.lease(card.devices, 1, lambda device: 60 * GIB, soon(0), end_idle)
    assert indices(lease) == [0]


def test_gpus_are_leased_all_or_none(card: Card, run: Callable[[], GpuLeases]) -> None:
    lease = take(run(), card)
    with pytest.raises(DeviceBusy):
        take(run(), card, count=2)
    take(run(), card).release(soon())  # the refused lease holds nothing
    threading.Timer(0.3, lease.release, (soon(),)).start()
    assert indices(take(run(), card, count=2, seconds=60)) == [0, 1]


def test_the_longest_waiting_run_is_next(
    card: Card, run: Callable[[], GpuLeases], tmp_path: Path
) -> None:
    """A run that released a GPU does not take it again before the run that waited for it."""
    card.devices = card.devices[:1]
    reports: list[str] = []
    holder, waiter = (
        run(),
        GpuLeases(tmp_path, query_usage=card.look, report=reports.append, same_pids=True),
    )
    held = take(holder, card)
    leased: list[GpuLease] = []
    waiting = threading.Thread(target=lambda: leased.append(take(waiter, card, seconds=60)))
    assert not holder.requested_by_others()
    waiting.start()
    while not holder.requested_by_others():
        assert waiting.is_alive()
    assert (
        "waiting for GPUs, at most 60 s. 1 of 1 GPUs wanted: GPU 0: held by another run"
        in reports[0]
    )
    held.release(soon())
    with pytest.raises(DeviceBusy):
        take(holder, card, seconds=0)
    waiting.join()
    assert indices(leased[0]) == [0]
    assert not holder.requested_by_others()
    assert list((tmp_path / "waiting").iterdir()) == []


def test_a_request_is_not_taken_for_a_killed_run_while_it_is_made(
    card: Card, run: Callable[[], GpuLeases], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run may look when the file of a request exists and is not locked yet."""
    card.devices = card.devices[:1]
    holder = run()
    held = take(holder, card)

    acquire = UnixFileLock.acquire

    def seen_first(lock: UnixFileLock, timeout: float | None = None, **options: Any) -> object:
        if timeout is None and "waiting" in lock.lock_file:
            Path(lock.lock_file).touch()
            holder.requested_by_others()
        return acquire(lock, timeout, **options)

    monkeypatch.setattr(UnixFileLock, "acquire", seen_first)
    with run()._queue(card.devices, leases._ticket()):
        assert holder.requested_by_others()
    held.release(soon())


def test_a_killed_waiter_does_not_block_others(
    card: Card, run: Callable[[], GpuLeases], tmp_path: Path
) -> None:
    (tmp_path / "waiting").mkdir()
    (tmp_path / "waiting" / "0-1-x.lock").touch()
    (tmp_path / "waiting" / "0-1-x.gpus").write_text("GPU-0 GPU-1")
    assert indices(take(run(), card)) == [0]
    assert list((tmp_path / "waiting").iterdir()) == []


def test_impossible_requests_are_unsupported(card: Card, run: Callable[[], GpuLeases]) -> None:
    with pytest.raises(
        Unsupported, match=r"needs 3 GPUs; 2 can be used here: 0 \(stand-in\), 1 \(stand-in\)"
    ):
        take(run(), card, count=3)
    with pytest.raises(Unsupported, match=r"more memory: 0 \(stand-in\) 80\.0 GiB, needs 90\.0"):
        take(run(), card, needed=90 * GIB)
    card.devices = [Gpu(0, "slice", 10 * GIB, f"MIG-{n}", part=True) for n in range(2)]
    with pytest.raises(Unsupported, match="only one MIG slice"):
        take(run(), card, count=2)


def test_a_slice_is_named_by_uuid(card: Card, run: Callable[[], GpuLeases]) -> None:
    card.devices = [Gpu(0, "slice", 80 * GIB, "MIG-1", part=True)]
    card.held["MIG-1"] = {}
    assert take(run(), card).environment["CUDA_VISIBLE_DEVICES"] == "MIG-1"


def test_another_tenant_leaves_enough_memory_or_is_named(
    card: Card, run: Callable[[], GpuLeases], tmp_path: Path
) -> None:
    card.held["GPU-0"][os.getpid()] = card.held["GPU-1"][os.getpid()] = 20 * GIB
    take(run(), card).release(soon())
    with pytest.raises(
        DeviceBusy, match=rf"60\.0 GiB free, 70\.0 needed; process {os.getpid()} \(.+\): 20\.0 GiB"
    ):
        take(run(), card, needed=70 * GIB, seconds=0)
    foreign = GpuLeases(tmp_path, query_usage=card.look, same_pids=False)
    with pytest.raises(DeviceBusy, match=r"1 processes of another pid namespace, 20\.0 GiB"):
        take(foreign, card, needed=70 * GIB, seconds=0)


def test_a_gpu_that_nvml_lost_is_not_leased(card: Card, tmp_path: Path) -> None:
    run = GpuLeases(
        tmp_path,
        query_usage=lambda uuid: "NVML failed: GPU is lost" if uuid == "GPU-0" else card.look(uuid),
    )
    assert indices(take(run, card)) == [1]


def test_a_gpu_lost_during_a_lease_is_released(card: Card, tmp_path: Path) -> None:
    lost: list[str] = []
    run = GpuLeases(
        tmp_path, query_usage=lambda uuid: "NVML failed: GPU is lost" if lost else card.look(uuid)
    )
    lease = take(run, card)
    lost.append("now")
    assert lease.release(soon()) == ()
    lost.clear()
    assert indices(take(run, card)) == [0]


def test_release_waits_for_own_memory_and_not_for_other_tenants(
    card: Card, run: Callable[[], GpuLeases]
) -> None:
    lease = take(run(), card)
    card.held["GPU-0"] = {DEAD: 30 * GIB}
    lease.claim([DEAD])
    card.held["GPU-0"][os.getpid()] = 50 * GIB  # a tenant that arrived later
    threading.Timer(0.3, lambda: card.held["GPU-0"].pop(DEAD)).start()
    assert lease.release(soon(10)) == ()


def test_release_waits_for_a_process_that_died_before_it_was_claimed(
    card: Card, run: Callable[[], GpuLeases]
) -> None:
    lease = take(run(), card)
    card.held["GPU-0"] = {DEAD: GIB}
    threading.Timer(0.3, card.held["GPU-0"].clear).start()
    assert lease.release(soon(10)) == ()
    assert not card.held["GPU-0"]


def test_memory_that_is_not_released_is_reported_by_process(
    card: Card, run: Callable[[], GpuLeases]
) -> None:
    lease = take(run(), card)
    card.held["GPU-0"] = {DEAD: 3 * GIB}
    assert lease.release(soon()) == (f"GPU 0: 3.0 GiB not released by process {DEAD} (ended)",)
    card.held["GPU-0"].clear()
    assert indices(take(run(), card)) == [0]


def test_memory_without_a_known_owner_is_not_reported(
    card: Card, run: Callable[[], GpuLeases]
) -> None:
    card.tells = False
    lease = take(run(), card)
    card.other = 30 * GIB
    ended = threading.Timer(0.3, lambda: setattr(card, "other", 0))
    ended.start()
    assert lease.release(soon(10)) == ()
    assert not ended.is_alive()  # it was waited for
    lease = take(run(), card)
    card.other = 30 * GIB
    assert lease.release(soon()) == ()


def test_pids_of_another_namespace_are_not_attributed_to_this_run(
    card: Card, tmp_path: Path
) -> None:
    run = GpuLeases(tmp_path, query_usage=card.look, same_pids=False)
    lease = take(run, card)
    card.held["GPU-0"] = {DEAD: 3 * GIB}
    assert lease.release(soon()) == ()
    lease = take(run, card)
    lease.claim([DEAD])  # NVML reports our engine's pid, which is the same in this namespace
    assert lease.release(soon()) == (f"GPU 0: 3.0 GiB not released by process {DEAD} (ended)",)


def test_runs_that_allow_it_share_a_gpu(card: Card, tmp_path: Path) -> None:
    def sharing(runs: int) -> GpuLeases:
        return GpuLeases(tmp_path, query_usage=card.look, same_pids=True, runs=runs)

    first = take(sharing(3), card, count=2)
    second = take(sharing(2), card, count=2)
    assert indices(first) == indices(second) == [0, 1]
    with pytest.raises(DeviceBusy, match="held by another run"):
        take(sharing(2), card, count=2)  # two are there already
    with pytest.raises(DeviceBusy, match="held by another run"):
        take(sharing(1), card)  # wants it alone
    third = take(sharing(3), card, count=2)
    for lease in (first, second, third):
        assert lease.release(soon()) == ()
    alone = take(sharing(1), card, count=2)
    with pytest.raises(DeviceBusy, match="held by another run"):
        take(sharing(3), card)
    assert alone.release(soon()) == ()


def test_a_run_that_joins_others_leaves_room_for_their_engines(card: Card, tmp_path: Path) -> None:
    card.other = 70 * GIB

    def join() -> GpuLease:
        return take(
            GpuLeases(tmp_path, query_usage=card.look, same_pids=True, runs=3), card, count=2
        )

    leases = [join(), join()]  # 4 and 8 of 10 GiB
    assert len(leases) == 2
    with pytest.raises(DeviceBusy, match=r"10\.0 GiB free, 12\.0 needed"):
        join()
