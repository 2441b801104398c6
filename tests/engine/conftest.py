"""Fixtures for tests that use real environments with pytester, which changes the home directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_vllm_regress.util.paths import cache_root

CACHE = str(cache_root())
UV_CACHE = os.environ.get("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv"))


@pytest.fixture
def user_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the caches of the user who runs the tests."""
    monkeypatch.setenv("VLLM_REGRESS_CACHE", CACHE)
    monkeypatch.setenv("UV_CACHE_DIR", UV_CACHE)
