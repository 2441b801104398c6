"""Environments that tests need.

The suite builds only some of them, because all of them together would take tens of gigabytes.
"""

from __future__ import annotations

import pytest

from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.names import resolve

ALWAYS = ("vllm-0.8.4", "vllm-0.8.5", "vllm-0.33.0")
"""Environments that the suite builds when they are missing, so that no test that needs one is
skipped, whatever the order of the tests."""


def require_environment(name: str) -> None:
    """Build ``name`` if it is in ``ALWAYS``.

    Otherwise skip the test if it is not built on this machine, and name the command that builds it.
    """
    cache, recipe = EnvironmentCache(), resolve(name)
    if name in ALWAYS:
        cache.ensure(recipe)
    elif cache.built(recipe) is None:
        pytest.skip(f"{name} is not built here: `vllm-regress env build {name}`")


def vllm_sources(name: str) -> dict[str, str]:
    """Return the Python sources of vLLM in an environment, which must be built, by path."""
    python = EnvironmentCache().built(resolve(name))
    assert python is not None
    (site,) = (python.parent.parent / "lib").glob("python3.*/site-packages")
    return {str(path.relative_to(site)): path.read_text() for path in (site / "vllm").rglob("*.py")}
