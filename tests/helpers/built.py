"""Environments that the suite does not build by itself: of many versions, tens of gigabytes."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.names import resolve

ALWAYS = ("vllm-0.8.4", "vllm-0.8.5")
"""What the suite builds where it is not there yet."""


def need_built(name: str) -> None:
    """Skip where ``name`` is not built on this machine, and say how it gets there."""
    if name not in ALWAYS and EnvironmentCache().built(resolve(name)) is None:
        pytest.skip(f"{name} is not built here: `vllm-regress env build {name}`")
