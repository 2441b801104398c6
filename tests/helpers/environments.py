"""Environments that tests need. The suite builds only some of them itself, because all versions together take tens of gigabytes."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.names import resolve

ALWAYS = ("vllm-0.8.4", "vllm-0.8.5", "vllm-0.33.0")
"""Environments that the suite builds if they are missing, so that no test of theirs is skipped, in whatever order tests run."""


def require_environment(name: str) -> None:
    """Build ``name`` if it is one of those. Skip the test, with the command to build it, if it is another that is not built on this machine."""
    cache, recipe = EnvironmentCache(), resolve(name)
    if name in ALWAYS:
        cache.ensure(recipe)
    elif cache.built(recipe) is None:
        pytest.skip(f"{name} is not built here: `vllm-regress env build {name}`")
