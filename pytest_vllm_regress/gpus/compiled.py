"""Kernels that engines compile on GPUs, kept from run to run: for each version of vLLM a folder below ``<cache>/compiled``.

Runs hold a shared lock beside the folder that they use, and what is held is never removed. The lock is the kernel's: it ends with its process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from ..util.files import size_of
from ..util.paths import writable_root

CACHES: Mapping[str, str] = MappingProxyType(
    {
        "TRITON_CACHE_DIR": "triton",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "FLASHINFER_WORKSPACE_BASE": "flashinfer",
        "VLLM_CACHE_ROOT": "vllm",
        "CUDA_CACHE_PATH": "cuda",
    }
)
"""Caches of compilers that would else lie in the run's own directory, or in the user's home: variable, and folder below ours."""


@dataclasses.dataclass(frozen=True)
class Kernels:
    """What was compiled for one vLLM. ``size`` in bytes, ``used`` in seconds since the epoch."""

    path: Path
    size: int
    used: float

    @property
    def name(self) -> str:
        """As the environment of that version is named."""
        return self.path.name


def root() -> Path:
    """Where the folders are."""
    return writable_root() / "compiled"


def place(version: str) -> Path:
    """Where kernels that vLLM ``version`` compiles are kept."""
    return root() / f"vllm-{version}"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """While it lasts, nobody removes ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(_lock(folder), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # who removes holds it for as long as that takes
        os.utime(lock.fileno())
        folder.mkdir(exist_ok=True)
        yield


def listing() -> tuple[Kernels, ...]:
    """All there are."""
    found = []
    for folder in sorted(root().glob("*/")):
        lock = _lock(folder)
        used = (lock if lock.exists() else folder).stat().st_mtime
        found.append(Kernels(folder, size_of(folder), used))
    return tuple(found)


def remove(kernels: Kernels) -> bool:
    """Remove them; False where a run uses them."""
    with contextlib.suppress(OSError), open(_lock(kernels.path), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(kernels.path)
    return not kernels.path.exists()


def _lock(folder: Path) -> Path:
    return folder.with_name(
        f"{folder.name}.lock"
    )  # beside it, and it stays: a lock on a file that is gone protects nothing
