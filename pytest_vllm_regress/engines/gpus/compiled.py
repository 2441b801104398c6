"""The cache of kernels that engines compile on GPUs: a folder in ``<cache>/compiled`` for each
version of vLLM.

A run holds a shared lock for the folder that it uses, which is not removed meanwhile. The kernel
releases the lock when its process ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ...util.files import private_folder, remove_tree
from ...util.paths import check_steps, writable_root
from ...util.sizes import disk_usage

CACHES: Mapping[str, str] = MappingProxyType(
    {
        "TRITON_CACHE_DIR": "triton",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "FLASHINFER_WORKSPACE_BASE": "flashinfer",
        "VLLM_CACHE_ROOT": "vllm",
        "CUDA_CACHE_PATH": "cuda",
    }
)
"""Variables of the compilers' caches, which are in the user's home or the run directory by default,
and subfolders for them."""


@dataclass(frozen=True)
class Kernels:
    """Kernels compiled for one version of vLLM.

    ``size`` in bytes, ``used`` in seconds since the epoch.
    """

    path: Path
    size: int
    used: float

    @property
    def name(self) -> str:
        """Name of the environment for that version."""
        return self.path.name


def root() -> Path:
    """Return the parent of the folders."""
    return writable_root() / "compiled"


def folder_for(version: str) -> Path:
    """Return the folder for kernels that vLLM ``version`` compiles."""
    return root() / f"vllm-{version}"


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Keep ``folder`` from being removed.

    Raises ``UsageError`` if somebody else could put kernels there.
    """
    private_folder(folder)
    check_steps(folder.parent.parent, folder)
    with open(_lock(folder), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # waits for a removal in progress
        os.utime(lock.fileno())
        private_folder(folder)
        yield


def list_kernels() -> tuple[Kernels, ...]:
    """Return all cached kernels."""
    kernels = []
    for folder in sorted(root().glob("*/")):
        lock = _lock(folder)
        used = (lock if lock.exists() else folder).stat().st_mtime
        kernels.append(Kernels(folder, disk_usage(folder), used))
    return tuple(kernels)


def remove(kernels: Kernels) -> bool:
    """Remove the kernels. Return False if a run uses them."""
    with suppress(OSError), open(_lock(kernels.path), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_tree(kernels.path)
    return not kernels.path.exists()


def _lock(folder: Path) -> Path:
    # Outside of the folder, so that it outlives a removal: a lock on a deleted file would protect
    # nothing.
    return folder.with_name(f"{folder.name}.lock")
