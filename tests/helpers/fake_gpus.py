"""Fakes of NVML and libcuda: small libraries built with the machine's C compiler, and descriptions
of machines with GPUs.

The descriptions follow the documentation of such machines. None was recorded on one.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "fakes"
GIB = 2**30
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, GPU_IS_LOST = 3, 4, 6, 15


_folders: list[Path] = []


def remove_built() -> None:
    """Remove the libraries that this process has built."""
    for folder in _folders:
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def build(name: str, soname: str) -> Path:
    """Build the library ``soname`` from ``name``.c and return its folder.

    Skip the test if there is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip(f"{soname}: no C compiler (cc, gcc) to build the fake with")
    folder = Path(tempfile.mkdtemp(prefix="fake-gpus-"))
    _folders.append(folder)
    others = folder / "others.h"
    others.write_text("".join(f"REFUSED({function})\n" for function in _CUDA_FUNCTIONS))
    command = [compiler, "-shared", "-fPIC", "-w", f"-Wl,-soname,{soname}", f'-DOTHERS="{others}"']
    subprocess.run([*command, "-o", folder / soname, HERE / f"{name}.c", "-ldl"], check=True)
    return folder


def nvml_folder() -> Path:
    """Return the folder for LD_LIBRARY_PATH of a process that uses the fake NVML."""
    return build("nvml", "libnvidia-ml.so.1")


def cuda_folder() -> Path:
    """Return the folder for LD_LIBRARY_PATH of a process whose calls of CUDA are counted."""
    return build("cuda", "libcuda.so.1")


# Functions that PyTorch, Triton and vLLM's kernels link to by name.
_CUDA_FUNCTIONS = (
    *(
        "cuTensorMapEncodeTiled",
        "cuTensorMapEncodeIm2col",
        "cuMemCreate",
        "cuMemMap",
        "cuMemUnmap",
        "cuMemRelease",
    ),
    *("cuMemSetAccess", "cuMemAddressReserve", "cuMemAddressFree", "cuMemGetAllocationGranularity"),
    *(
        "cuCtxGetCurrent",
        "cuCtxSetCurrent",
        "cuCtxGetDevice",
        "cuDevicePrimaryCtxRetain",
        "cuDeviceGet",
    ),
    *(
        "cuDeviceGetAttribute",
        "cuGetExportTable",
        "cuPointerGetAttribute",
        "cuLaunchKernelEx",
        "cuLaunchKernel",
    ),
    *("cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute", "cuStreamWriteValue32_v2"),
    *("cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"),
)


@dataclasses.dataclass(frozen=True)
class Card:
    """A GPU as NVML describes it. ``mig`` is None if this kind has no MIG mode."""

    name: str
    total: int
    capability: str
    number: int = 0
    used: int = 500 * 2**20
    mode: int = 0
    mig: int | None = None
    slices: tuple[int, ...] = ()
    processes: tuple[tuple[int, int], ...] = ()
    errors: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def uuid(self) -> str:
        return f"GPU-{self.number:08x}-1111-2222-3333-444444444444"

    def slice_uuid(self, index: int) -> str:
        return f"MIG-{self.number:08x}-5555-6666-7777-{index:012x}"

    def lines(self, index: int) -> Iterator[str]:
        """Yield this GPU's lines of the file that the fake reads.

        ``index`` is NVML's index of the GPU.
        """
        head = f"gpu{index}."
        plain = {
            "name": self.name,
            "uuid": self.uuid,
            "total": self.total,
            "used": self.used,
            "mode": self.mode,
        }
        plain["capability"] = self.capability
        if self.mig is not None:
            plain["mig"] = self.mig
        for index, size in enumerate(self.slices):
            part = {
                "name": f"{self.name} MIG",
                "uuid": self.slice_uuid(index),
                "total": size,
                "used": 2**24,
            }
            plain |= {f"slice{index}.{key}": value for key, value in part.items()}
            plain[f"slice{index}.capability"] = self.capability
        yield from (f"{head}{key} {value}" for key, value in plain.items())
        yield from (f"{head}process {pid} {held}" for pid, held in self.processes)
        yield from (f"{head}error.{function} {code}" for function, code in self.errors.items())


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine with GPUs. ``errors`` are error codes by function."""

    cards: tuple[Card, ...]
    driver: str = "580.95.05"
    cuda: int = 13000
    errors: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def text(self) -> str:
        lines = [f"driver {self.driver}", f"cuda {self.cuda}", f"count {len(self.cards)}"]
        lines += [f"error.{function} {code}" for function, code in self.errors.items()]
        lines += [line for index, card in enumerate(self.cards) for line in card.lines(index)]
        return "".join(f"{line}\n" for line in lines)


H100 = Card("NVIDIA H100 80GB HBM3", 81559 * 2**20, "9.0", 0xA1, mig=0)
T4 = Card("Tesla T4", 15360 * 2**20, "7.5", 0xB1, used=2**20)
A100 = Card("NVIDIA A100-SXM4-80GB", 81920 * 2**20, "8.0", 0xC1, mig=0)
L4 = Card("NVIDIA L4", 23034 * 2**20, "8.9", 0x14, used=2**20)
GH200 = Card("NVIDIA GH200 480GB", 97871 * 2**20, "9.0", 0xD1, used=40 * GIB, mig=0)
MACHINES: Mapping[str, Machine] = {
    "H100": Machine((H100,)),
    "T4": Machine((T4,), driver="550.54.15", cuda=12040),
    "L4": Machine((L4,)),
    "A100": Machine((A100,)),
    "8 alike": Machine(tuple(dataclasses.replace(H100, number=0xE0 + n) for n in range(8))),
    # On the bus the T4 comes first. By default CUDA lists the fastest GPU first.
    "mixed order": Machine((T4, H100)),
    "MIG": Machine((dataclasses.replace(A100, mig=1, slices=(10 * GIB, 10 * GIB, 20 * GIB)),)),
    # Memory that the operating system uses on the GPU's NUMA node counts as used.
    "GH200": Machine((GH200,)),
    # WSL does not report processes and their memory.
    "WSL": Machine(
        (Card("NVIDIA GeForce RTX 4090", 24564 * 2**20, "8.9", 0xF1, used=2 * GIB),),
        errors={"nvmlDeviceGetComputeRunningProcesses_v3": NOT_SUPPORTED},
    ),
    "none": Machine((), errors={"nvmlInitWithFlags": 9}),
    "lost": Machine(
        (
            H100,
            dataclasses.replace(
                H100, number=0xA2, errors={"nvmlDeviceGetHandleByIndex_v2": GPU_IS_LOST}
            ),
        )
    ),
    "container without permission": Machine(
        (H100,), errors={"nvmlDeviceGetComputeRunningProcesses_v3": NO_PERMISSION}
    ),
    "prohibited": Machine((dataclasses.replace(H100, mode=2),)),
    "exclusive": Machine((dataclasses.replace(H100, mode=3),)),
}
