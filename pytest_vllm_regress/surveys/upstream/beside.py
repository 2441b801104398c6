"""Packages that upstream's tests need beside vLLM, in a folder at the end of the path: the
environment keeps its versions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from ...environments.installed import read_installed
from ...environments.sidecars import ensure_packages
from ...errors import UsageError
from ...util.paths import PACKAGE

PACKAGES = (
    *(
        "pytest>=8.2,<9",
        "pytest-asyncio>=0.24,<2",
        "pytest-timeout>=2.3",
        "openai>=1.40",
        "requests",
        "httpx",
        "jsonschema",
        "tblib",  # of newer revisions' conftest
    ),
    # what our own package imports in the process of the tests
    *(
        "filelock>=3.20.1",
        "packaging",
        "platformdirs",
        "psutil>=6",
        "py-spy",
        "pyyaml",
        "regex",
        "safetensors",
        "numpy",
    ),
    *("hypothesis", "nvidia-ml-py", "prometheus-client", "tomlkit", "uv>=0.13"),
)
_LEAST_PYTHON = (3, 11)


def ensure_beside(python: Path, progress: Callable[[str], None] = lambda line: None) -> Path:
    """Return the folder with ``PACKAGES`` for the interpreter ``python``, fetched on first use.
    Created atomically.

    Raises ``UsageError`` for a Python that cannot import our own package, and ``BuildError`` if
    something cannot be fetched.
    """
    version = tuple(map(int, read_installed(python).python.split(".")[:2]))
    if version < _LEAST_PYTHON:
        raise UsageError(
            f"{python} is Python {version[0]}.{version[1]}: upstream's tests need an environment with 3.11 or later"
        )
    tag = f"{version[0]}.{version[1]}-{hashlib.sha256(repr(PACKAGES).encode()).hexdigest()[:10]}"
    return ensure_packages(
        Path("beside", tag),
        python,
        PACKAGES,
        "fetching pytest and clients for upstream's tests",
        progress,
    )


def link_own_package(folder: Path) -> Path:
    """Return ``folder`` with our package in it, and nothing of what is installed beside that."""
    folder.mkdir()
    (folder / PACKAGE.name).symlink_to(PACKAGE)
    return folder
