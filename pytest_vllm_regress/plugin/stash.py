"""Keys under which the plugin keeps its state on pytest's objects, and how to tell tests that are ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ..engines.session import Session
    from ..engines.settings import Settings

SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
SESSION: pytest.StashKey[Session] = pytest.StashKey()


def uses_target(item: pytest.Item) -> bool:
    """The test uses one of our fixtures (all of them depend on ``vllm_env``)."""
    return "vllm_env" in getattr(item, "fixturenames", ())
