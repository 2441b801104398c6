"""Check driver, GPUs and build tools against the needs of a build of torch.

Reads files and NVML; never initializes CUDA.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from packaging.version import Version

from ...environments.installed import Package, metadata
from ...util.files import peek
from ...util.versions import version_of
from .nvml import Machine

Capability = tuple[int, int]
Incompatibility = tuple[str, str, bool]
"""An id of ``audit.preflight.CHECKS``, a sentence that describes the problem, and whether it
prevents an engine from running."""
LEAST_SHM = 128 * 2**20
"""Bytes of /dev/shm that several workers need. Containers have 64 MiB by default."""


def cuda_of(torch: Package) -> Capability | None:
    """Return the CUDA version of a torch distribution, from its version module (read, not
    imported), its version or its requirements."""
    if torch.place is not None:
        text = peek(torch.place.parent / "torch" / "version.py", 64 * 1024)
        declaration = re.search(
            r"^cuda(?:[ \t]*:[^=\n]{0,80})?[ \t]*=[ \t]*(None|['\"](\d{1,4}(?:\.\d{1,4}){0,3})['\"])",
            text,
            re.M,
        )
        if declaration:
            return _parse(declaration[2]) if declaration[2] else None
    local = re.search(r"\+cu(\d\d)(\d)$", torch.version)
    if local:
        return int(local[1]), int(local[2])
    if torch.place is None or "+" in torch.version:
        return None
    for text in (value for key, value in metadata(torch.place) if key == "Requires-Dist"):
        requirement = re.match(
            r"(?:nvidia-cuda-runtime(?:-cu\d+)?|cuda-toolkit)\b[^=;]{0,80}==\s{0,8}(\d{1,4}(?:\.\d{1,9}){0,5})",
            text,
        )
        if requirement:
            return _parse(requirement[1])
    return None


def compare(
    vllm: str, torch: str, build: Capability | None, machine: Machine | str
) -> Iterator[Incompatibility]:
    """Yield the incompatibilities of a build of torch with a machine's driver and GPUs. ``machine``
    may be the reason why they are unknown.

    Sources: NVIDIA's CUDA compatibility guide (an older driver works within one major version,
    except for PTX), vLLM's installation page (compute capability 7.0), PyTorch's release matrix (no
    Volta in CUDA 12.8 builds since 2.11, nor in CUDA 13 builds).
    """
    if build is None:
        yield "torch-without-cuda", f"vllm {vllm} is a CUDA build; torch {torch} has no CUDA.", True
        return
    if isinstance(machine, str):
        yield "no-driver", f"torch {torch} is built with CUDA {_dotted(build)}. {machine}.", False
        return
    driver = f"Driver {machine.driver} supports CUDA {_dotted(machine.cuda)}; torch {torch} is built with {_dotted(build)}."
    if machine.cuda[0] < build[0]:
        yield "old-driver", driver, True
    elif machine.cuda < build:
        yield "older-driver", driver, False
    minimum = _minimum_capability(torch, build)
    for name, capability in _kinds_of_gpus(machine):
        gpu_text = f"{name} has compute capability {_dotted(capability)}"
        if capability < minimum:
            yield (
                "gpu-too-old",
                f"{gpu_text}; torch {torch} with CUDA {_dotted(build)} under vllm {vllm} needs {_dotted(minimum)}.",
                True,
            )
        since = next((cuda for first, cuda in _FIRST_CUDA if capability >= first), (0, 0))
        if build < since:
            yield (
                "gpu-too-new",
                f"{gpu_text}, which CUDA supports since {_dotted(since)}; torch {torch} is built with {_dotted(build)}.",
                True,
            )


def compare_any(machine: Machine) -> Iterator[Incompatibility]:
    """Like ``compare``, for a build of torch that is unknown or not installed yet: yield what no
    CUDA build of a supported vLLM works with."""
    if machine.cuda < _OLDEST_CUDA:
        yield (
            "old-driver",
            f"Driver {machine.driver} supports CUDA {_dotted(machine.cuda)}; vllm needs {_dotted(_OLDEST_CUDA)} or newer.",
            True,
        )
    for name, capability in _kinds_of_gpus(machine):
        if capability < _OLDEST_GPU:
            yield (
                "gpu-too-old",
                f"{name} has compute capability {_dotted(capability)}; vllm needs {_dotted(_OLDEST_GPU)} or newer.",
                True,
            )


def _kinds_of_gpus(machine: Machine) -> list[tuple[str, Capability]]:
    """Return name and compute capability of each kind of GPU whose capability is known."""
    return list(dict.fromkeys((g.name, g.capability) for g in machine.gpus if g.capability))


def modes(machine: Machine) -> Iterator[Incompatibility]:
    """Yield compute modes that prevent or limit engines, and GPUs that NVML cannot describe."""
    for gpu in machine.gpus:
        label = f"GPU {gpu.index} ({gpu.name})"
        if gpu.compute_mode == "prohibited":
            yield "compute-mode", f"{label} is in compute mode prohibited: CUDA refuses it.", True
        elif gpu.compute_mode.startswith("exclusive"):
            yield (
                "compute-mode",
                f"{label} is in compute mode {gpu.compute_mode}: one engine at a time.",
                False,
            )
        if gpu.mig and not gpu.slices:
            yield (
                "mig-without-slices",
                f"{label} is in MIG mode and has no slice: CUDA cannot use it.",
                True,
            )
    for description in machine.broken:
        yield "gpu-broken", f"{description}.", True


def tools(
    python: Path, version: str, environ: Mapping[str, str], shm: Path = Path("/dev/shm")
) -> Iterator[Incompatibility]:
    """Yield problems with the tools that engines compile with at their first start, and with
    /dev/shm.

    ``python`` and ``version`` are of the interpreter that Triton builds for.
    """
    search = environ.get("PATH", os.defpath)
    compiler = environ.get("CC") or "gcc"
    if not any(shutil.which(name, path=search) for name in (compiler, "gcc", "clang", "cc")):
        yield (
            "no-compiler",
            "There is no C compiler on PATH (gcc, clang, cc), and CC names none.",
            True,
        )
    minor = ".".join(version.split(".")[:2])
    header = (
        Path(os.path.realpath(python)).parent.parent / "include" / f"python{minor}" / "Python.h"
    )
    if not header.is_file():
        yield "no-python-headers", f"{header} does not exist.", True
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH") or "/usr/local/cuda"
    if not shutil.which("nvcc", path=search) and not (Path(home) / "bin" / "nvcc").is_file():
        yield "no-nvcc", f"There is no nvcc, neither on PATH nor in {home}/bin.", False
    with suppress(OSError):
        status = os.statvfs(shm)
        size = status.f_frsize * status.f_blocks
        if size < LEAST_SHM:
            yield "small-shm", f"{shm} has {size / 2**20:.0f} MiB.", False


_FIRST_CUDA = (((10, 0), (12, 8)), ((8, 9), (11, 8)), ((8, 0), (11, 0)))
"""Compute capability, and the first CUDA version that supports it."""


_OLDEST_GPU: Capability = (7, 0)
"""Least compute capability for vLLM, from its installation page."""
_OLDEST_CUDA: Capability = (12, 0)
"""Least CUDA version of a driver for the wheels of vLLM on the package index; 0.5.4 is built with
12.1."""


def _minimum_capability(torch: str, build: Capability) -> Capability:
    newer = (version_of(torch) or Version("0")) >= Version("2.11")
    return (7, 5) if build >= (13, 0) or (build >= (12, 8) and newer) else _OLDEST_GPU


def _parse(text: str) -> Capability:
    major, _, minor = text.partition(".")
    return int(major), int(minor.partition(".")[0] or 0)


def _dotted(version: Capability) -> str:
    return f"{version[0]}.{version[1]}"
