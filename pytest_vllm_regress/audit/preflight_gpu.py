"""Driver and GPUs against what a build of torch needs. NVML alone is asked; CUDA is never initialized."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from packaging.version import Version

from ..environments.installed import Package, metadata
from ..util.files import peek
from ..util.versions import version_of

Capability = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Driver:
    """What NVML says: the newest CUDA the driver serves, its own version, and each GPU's name and compute capability."""

    cuda: Capability
    version: str
    gpus: tuple[tuple[str, Capability], ...]


def read_driver() -> Driver | str:
    """Ask NVML; a string says why there is no answer."""
    try:
        import pynvml
    except ImportError:
        return "the NVML bindings (package nvidia-ml-py) are not installed"
    return ask(pynvml)


def ask(nvml: Any) -> Driver | str:
    """What ``nvml`` (the module pynvml) says of driver and GPUs."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return f"NVML, the NVIDIA driver's management library: {error}"
    try:
        number = nvml.nvmlSystemGetCudaDriverVersion_v2()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        gpus = tuple(
            (_text(nvml.nvmlDeviceGetName(h)), _pair(nvml.nvmlDeviceGetCudaComputeCapability(h))) for h in handles
        )
        return Driver((number // 1000, number % 1000 // 10), _text(nvml.nvmlSystemGetDriverVersion()), gpus)
    except nvml.NVMLError as error:
        return f"NVML failed: {error}"
    finally:
        nvml.nvmlShutdown()


def cuda_of(torch: Package) -> Capability | None:
    """The CUDA that a torch distribution was built with: from its version module (read, not imported), its version, or what it asks for."""
    texts: list[str] = []
    if torch.place is not None:
        text = peek(torch.place.parent / "torch" / "version.py", 64 * 1024)
        stated = re.search(
            r"^cuda(?:[ \t]*:[^=\n]{0,80})?[ \t]*=[ \t]*(None|['\"](\d{1,4}(?:\.\d{1,4}){0,3})['\"])", text, re.M
        )
        if stated:
            return _parse(stated[2]) if stated[2] else None
    local = re.search(r"\+cu(\d\d)(\d)$", torch.version)
    if local:
        return int(local[1]), int(local[2])
    if torch.place is not None and "+" not in torch.version:
        texts = [value for key, value in metadata(torch.place) if key == "Requires-Dist"]
    for text in texts:
        asked = re.match(
            r"(?:nvidia-cuda-runtime(?:-cu\d+)?|cuda-toolkit)\b[^=;]{0,80}==\s{0,8}(\d{1,4}(?:\.\d{1,9}){0,5})", text
        )
        if asked:
            return _parse(asked[1])
    return None


def compare(vllm: str, torch: str, build: Capability | None, driver: Driver | str) -> Iterator[tuple[str, str, bool]]:
    """Id, what was found, and whether it counts, for everything that does not fit.

    Sources: NVIDIA's CUDA compatibility guide (within one major version an older driver serves, except for PTX), vLLM's
    installation page (compute capability 7.0), PyTorch's release matrix (Volta left CUDA 12.8 builds with 2.11 and CUDA 13).
    """
    if build is None:
        yield "torch-without-cuda", f"vllm {vllm} is a CUDA build; torch {torch} has no CUDA.", True
        return
    if isinstance(driver, str):
        yield "no-driver", f"torch {torch} is built with CUDA {_dotted(build)}. {driver}.", False
        return
    serves = (
        f"Driver {driver.version} serves CUDA {_dotted(driver.cuda)}; torch {torch} is built with {_dotted(build)}."
    )
    if driver.cuda[0] < build[0]:
        yield "old-driver", serves, True
    elif driver.cuda < build:
        yield "older-driver", serves, False
    least = _least(torch, build)
    for name, capability in dict.fromkeys(driver.gpus):
        has = f"{name} has compute capability {_dotted(capability)}"
        if capability < least:
            yield (
                "gpu-too-old",
                f"{has}; torch {torch} with CUDA {_dotted(build)} under vllm {vllm} needs {_dotted(least)}.",
                True,
            )
        since = next((cuda for first, cuda in _FIRST_CUDA if capability >= first), (0, 0))
        if build < since:
            yield (
                "gpu-too-new",
                f"{has}, which CUDA knows since {_dotted(since)}; torch {torch} is built with {_dotted(build)}.",
                True,
            )


_FIRST_CUDA = (((10, 0), (12, 8)), ((8, 9), (11, 8)), ((8, 0), (11, 0)))
"""Compute capability, and the first CUDA that has it."""


def _least(torch: str, build: Capability) -> Capability:
    newer = (version_of(torch) or Version("0")) >= Version("2.11")
    return (7, 5) if build >= (13, 0) or (build >= (12, 8) and newer) else (7, 0)


def _parse(text: str) -> Capability:
    major, _, minor = text.partition(".")
    return int(major), int(minor.partition(".")[0] or 0)


def _pair(value: Any) -> Capability:
    major, minor = value
    return int(major), int(minor)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _dotted(version: Capability) -> str:
    return f"{version[0]}.{version[1]}"
