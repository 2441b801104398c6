"""Driver, GPUs and tools against what a build of torch and its compilers need. Files and NVML's answers are read; CUDA is never initialized."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.version import Version

from ..environments.installed import Package, metadata
from ..util.files import peek
from ..util.versions import version_of
from .nvml import Machine

Capability = tuple[int, int]
Misfit = tuple[str, str, bool]
"""An id of ``audit.preflight.CHECKS``, what was found as a sentence, and whether it keeps an engine from running."""
LEAST_SHM = 128 * 2**20
"""Bytes of /dev/shm below which several workers fail: a container gets 64 MiB when it is not told otherwise."""


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


def compare(vllm: str, torch: str, build: Capability | None, machine: Machine | str) -> Iterator[Misfit]:
    """Everything that does not fit between a build of torch and the driver and GPUs of a machine (a string: why they are not known).

    Sources: NVIDIA's CUDA compatibility guide (within one major version an older driver serves, except for PTX), vLLM's
    installation page (compute capability 7.0), PyTorch's release matrix (Volta left CUDA 12.8 builds with 2.11 and CUDA 13).
    """
    if build is None:
        yield "torch-without-cuda", f"vllm {vllm} is a CUDA build; torch {torch} has no CUDA.", True
        return
    if isinstance(machine, str):
        yield "no-driver", f"torch {torch} is built with CUDA {_dotted(build)}. {machine}.", False
        return
    serves = (
        f"Driver {machine.driver} serves CUDA {_dotted(machine.cuda)}; torch {torch} is built with {_dotted(build)}."
    )
    if machine.cuda[0] < build[0]:
        yield "old-driver", serves, True
    elif machine.cuda < build:
        yield "older-driver", serves, False
    least = _least(torch, build)
    for name, capability in dict.fromkeys((gpu.name, gpu.capability) for gpu in machine.gpus):
        if capability is None:
            continue
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


def modes(machine: Machine) -> Iterator[Misfit]:
    """Compute modes that keep engines away, GPUs that NVML cannot describe."""
    for gpu in machine.gpus:
        named = f"GPU {gpu.index} ({gpu.name})"
        if gpu.compute_mode == "prohibited":
            yield "compute-mode", f"{named} is in compute mode prohibited: CUDA refuses it.", True
        elif gpu.compute_mode.startswith("exclusive"):
            yield "compute-mode", f"{named} is in compute mode {gpu.compute_mode}: one engine at a time.", False
        if gpu.mig and not gpu.slices:
            yield "mig-without-slices", f"{named} is in MIG mode and has no slice: CUDA cannot use it.", True
    for words in machine.broken:
        yield "gpu-broken", f"{words}.", True


def tools(python: Path, version: str, environ: Mapping[str, str], shm: Path = Path("/dev/shm")) -> Iterator[Misfit]:
    """What engines compile with on their first start, and /dev/shm. ``python`` and ``version``: the interpreter that Triton builds for."""
    search = environ.get("PATH", os.defpath)
    compiler = environ.get("CC") or "gcc"
    if not any(shutil.which(name, path=search) for name in (compiler, "gcc", "clang", "cc")):
        yield "no-compiler", "There is no C compiler on PATH (gcc, clang, cc), and CC names none.", True
    minor = ".".join(version.split(".")[:2])
    header = Path(os.path.realpath(python)).parent.parent / "include" / f"python{minor}" / "Python.h"
    if not header.is_file():
        yield "no-python-headers", f"{header} is not there.", True
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH") or "/usr/local/cuda"
    if not shutil.which("nvcc", path=search) and not (Path(home) / "bin" / "nvcc").is_file():
        yield "no-nvcc", f"There is no nvcc, neither on PATH nor in {home}/bin.", False
    with contextlib.suppress(OSError):
        place = os.statvfs(shm)
        size = place.f_frsize * place.f_blocks
        if size < LEAST_SHM:
            yield "small-shm", f"{shm} has {size / 2**20:.0f} MiB.", False


_FIRST_CUDA = (((10, 0), (12, 8)), ((8, 9), (11, 8)), ((8, 0), (11, 0)))
"""Compute capability, and the first CUDA that has it."""


def _least(torch: str, build: Capability) -> Capability:
    newer = (version_of(torch) or Version("0")) >= Version("2.11")
    return (7, 5) if build >= (13, 0) or (build >= (12, 8) and newer) else (7, 0)


def _parse(text: str) -> Capability:
    major, _, minor = text.partition(".")
    return int(major), int(minor.partition(".")[0] or 0)


def _dotted(version: Capability) -> str:
    return f"{version[0]}.{version[1]}"
