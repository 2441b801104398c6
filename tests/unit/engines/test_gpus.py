"""GPU leases with a stand-in for NVML: shared, all or none, short of memory, and waited for after the end."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_vllm_regress.engines import gpus
from pytest_vllm_regress.engines.device import Gpu, find_gpus
from pytest_vllm_regress.engines.gpus import Usage, lease_gpus, visible
from pytest_vllm_regress.errors import DeadlineExceeded, Unsupported, UsageError
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.sizes import GIB


class Nvml:
    """Stands for the module pynvml: a machine with GPUs of 80 GiB; ``held``: bytes by GPU and pid."""

    class NVMLError(Exception):
        pass

    def __init__(self, count: int) -> None:
        self.held: list[dict[int, int]] = [{} for _ in range(count)]

    def nvmlInit(self) -> None:
        pass

    nvmlShutdown = nvmlInit

    def nvmlDeviceGetCount(self) -> int:
        return len(self.held)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"stand-in"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        used = sum(self.held[handle].values())
        return SimpleNamespace(total=80 * GIB, used=used, free=80 * GIB - used)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in self.held[handle].items()]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    made = Nvml(2)
    monkeypatch.setitem(__import__("sys").modules, "pynvml", made)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return made


def soon(seconds: float = 0.3) -> Deadline:
    return Deadline.after("start", seconds)


def test_found_by_name_memory_and_uuid(nvml: Nvml) -> None:
    assert find_gpus()[0] == (Gpu(0, "stand-in", 80 * GIB, "GPU-00"), Gpu(1, "stand-in", 80 * GIB, "GPU-11"))


def test_two_leases_never_share(nvml: Nvml, tmp_path: Path) -> None:
    first, second = lease_gpus(1, soon(), tmp_path), lease_gpus(1, soon(), tmp_path)
    assert {*first.indices, *second.indices} == {0, 1}
    assert first.environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(first.indices[0])}
    with pytest.raises(DeadlineExceeded, match="no 1 of 2 GPUs became free"):
        lease_gpus(1, soon(), tmp_path)
    assert first.release(soon()) == ()
    assert lease_gpus(1, soon(), tmp_path).indices == first.indices


def test_all_or_none(nvml: Nvml, tmp_path: Path) -> None:
    one = lease_gpus(1, soon(), tmp_path)
    with pytest.raises(DeadlineExceeded):
        lease_gpus(2, soon(), tmp_path)
    lease_gpus(1, soon(), tmp_path).release(soon())  # the refused lease holds nothing
    threading.Timer(0.3, one.release, (soon(),)).start()
    assert lease_gpus(2, soon(10), tmp_path).indices == (0, 1)


def test_too_few_gpus_are_told(nvml: Nvml, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"needs 3 GPUs; 2 can be used here: 0 \(stand-in\), 1 \(stand-in\)"):
        lease_gpus(3, soon(), tmp_path)


def test_too_little_memory_names_the_holder(nvml: Nvml, tmp_path: Path) -> None:
    nvml.held[0][1] = 79 * GIB
    assert lease_gpus(1, soon(), tmp_path).indices == (1,)
    nvml.held[1][1] = 79 * GIB
    with pytest.raises(Unsupported, match=r"GPU 0: 1\.0 GiB free, process 1 \("):
        lease_gpus(1, soon(), tmp_path / "other")


def test_memory_is_waited_for(nvml: Nvml, tmp_path: Path) -> None:
    nvml.held[0][4] = GIB  # somebody else's, before and after
    lease = lease_gpus(1, soon(), tmp_path)
    nvml.held[0][1] = 30 * GIB
    threading.Timer(0.3, nvml.held[0].clear).start()
    assert lease.release(soon(10)) == ()


def test_memory_that_stays_is_charged_by_name(nvml: Nvml, tmp_path: Path) -> None:
    lease = lease_gpus(1, soon(), tmp_path)
    nvml.held[0][1] = 3 * GIB
    (left,) = lease.release(soon())
    assert left.startswith("GPU 0: 3.0 GiB not released; process 1 (")
    assert lease_gpus(1, soon(), tmp_path).indices == (0,)


def test_drivers_that_tell_no_processes(nvml: Nvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int) -> list[Any]:
        raise nvml.NVMLError("not permitted")

    monkeypatch.setattr(nvml, "nvmlDeviceGetComputeRunningProcesses", refuse)
    assert gpus.usage(0).describe() == "no process that NVML tells"
    assert Usage(0, 1, {10**9: GIB}).describe() == f"process {10**9} (of another container, or gone): 1.0 GiB"


@pytest.mark.parametrize(
    ("setting", "indices"),
    [("", []), ("1", [1]), ("1,0", [1, 0]), ("GPU-11", [1]), ("7", []), (" 0 , 1 ", [0, 1]), (None, [0, 1])],
)
def test_visible(nvml: Nvml, setting: str | None, indices: list[int]) -> None:
    assert [gpu.index for gpu in visible(find_gpus()[0], setting)] == indices


def test_no_gpu_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UsageError, match="hides every GPU"):
        lease_gpus(1, soon(), tmp_path)
