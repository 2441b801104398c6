"""Query NVML, the NVIDIA driver's management library. Failures are returned as text, not raised.

CUDA is not initialized. GPUs are numbered as by NVML, in the order of the PCI bus.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

Version = tuple[int, int]
T = TypeVar("T")
COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a MIG device of one (``part``, with a ``uuid`` like "MIG-..."). ``index`` is
    NVML's, of the whole GPU; memory is in bytes.

    ``capability`` is None and ``compute_mode`` "unknown" if NVML does not report them.
    """

    index: int
    name: str
    memory: int
    uuid: str
    capability: Version | None = None
    compute_mode: str = "default"
    mig: bool = False
    slices: tuple[Gpu, ...] = ()
    part: bool = False

    @property
    def devices(self) -> tuple[Gpu, ...]:
        """What CUDA can use of it: its slices in MIG mode, otherwise itself."""
        return self.slices if self.mig else (self,)

    @property
    def selector(self) -> str:
        """Value for CUDA_VISIBLE_DEVICES: the index of a whole GPU, because vLLM up to 0.20.1
        accepts nothing else, or a MIG device's UUID."""
        return self.uuid if self.part else str(self.index)

    def describe(self) -> str:
        """Return index and name, and the UUID of a MIG device: those of one GPU may have the same
        name."""
        return f"{self.index} ({self.name}{f', {self.uuid}' if self.part else ''})"


@dataclass(frozen=True)
class Machine:
    """Driver and GPUs.

    ``cuda`` is the newest version that the driver supports; ``broken`` describes GPUs that NVML
    lists but cannot query, or what is not usable.
    """

    driver: str
    cuda: Version
    gpus: tuple[Gpu, ...]
    broken: tuple[str, ...] = ()


@dataclass(frozen=True)
class Usage:
    """Memory use of a GPU or MIG device, in bytes.

    ``holders`` maps pids to bytes; None if NVML does not report it. Pids are of NVML's namespace,
    which is not a container's.
    """

    used: int
    free: int
    holders: dict[int, int] | None = field(hash=False, default=None)


def query_machine() -> Machine | str:
    """Return driver and GPUs, or a string with the reason why they are unknown."""
    return _ask(_machine)


def usage(uuid: str) -> Usage | str:
    """Return the memory use of the GPU or MIG device ``uuid``, or a string with the reason why it
    is unknown."""
    return _ask(lambda nvml: _usage(nvml, uuid))


def _ask(question: Callable[[Any], T]) -> T | str:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"NVML, the NVIDIA driver's management library: {error}; {_device_files()}"
    try:
        return question(pynvml)
    except pynvml.NVMLError as error:
        return f"NVML failed: {error}"
    finally:
        with suppress(pynvml.NVMLError):  # must not hide the result or an earlier error
            pynvml.nvmlShutdown()


def _machine(nvml: Any) -> Machine:
    cuda = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    driver = str(nvml.nvmlSystemGetDriverVersion())
    gpus, broken = [], []
    for index in range(int(nvml.nvmlDeviceGetCount())):
        try:
            gpus.append(_gpu(nvml, index))
        except nvml.NVMLError as error:
            broken.append(f"GPU {index}: NVML: {error}")
    return Machine(driver, (cuda // 1000, cuda % 1000 // 10), tuple(gpus), tuple(broken))


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    mode = _optional(nvml, lambda: int(nvml.nvmlDeviceGetComputeMode(handle)))
    whole = Gpu(
        index,
        str(nvml.nvmlDeviceGetName(handle)),
        int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        str(nvml.nvmlDeviceGetUUID(handle)),
        _optional(nvml, lambda: tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))),
        COMPUTE_MODES[mode] if mode is not None and mode < len(COMPUTE_MODES) else "unknown",
    )
    if not _optional(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0]):
        return whole
    return replace(whole, mig=True, slices=tuple(_slices(nvml, handle, whole)))


def _slices(nvml: Any, handle: Any, whole: Gpu) -> Iterator[Gpu]:
    for index in range(
        _optional(nvml, lambda: int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))) or 0
    ):
        with suppress(nvml.NVMLError):  # unused slots
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            uuid = str(nvml.nvmlDeviceGetUUID(part))
            memory = int(nvml.nvmlDeviceGetMemoryInfo(part).total)
            name = "MIG device"
            with suppress(nvml.NVMLError):
                name = str(nvml.nvmlDeviceGetName(part))
            yield replace(whole, name=name, memory=memory, uuid=uuid, part=True)


def _usage(nvml: Any, uuid: str) -> Usage:
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    running = _optional(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    reported = running is not None and all(process.usedGpuMemory is not None for process in running)
    holders = (
        {int(process.pid): int(process.usedGpuMemory) for process in running}
        if running and reported
        else None
    )
    return Usage(int(memory.used), int(memory.free), {} if running == [] else holders)


def _optional(nvml: Any, ask: Callable[[], T]) -> T | None:
    """Return None if NVML refuses. Not every GPU or container supports every query."""
    with suppress(nvml.NVMLError):
        return ask()
    return None


def _device_files() -> str:
    return "devices /dev/nvidia*: " + (
        ", ".join(sorted(n for n in os.listdir("/dev") if n.startswith("nvidia"))) or "none"
    )
