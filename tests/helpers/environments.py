"""Environments that the suite does not build itself, because all versions together take tens of gigabytes."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.names import resolve

ALWAYS = ("vllm-0.8.4", "vllm-0.8.5")
"""Environments that the suite builds if they are missing."""


def require_environment(name: str) -> None:
    """Skip the test, with the command to build ``name``, unless it is built on this machine."""
    if name not in ALWAYS and EnvironmentCache().built(resolve(name)) is None:
        pytest.skip(f"{name} is not built here: `vllm-regress env build {name}`")
