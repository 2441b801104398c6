"""A made-up history that a fix was merged into."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.environments.sources import set_clones
from tests.helpers.histories import fixed_by_a_merge
from tests.helpers.repositories import RepositoryBuilder


@pytest.fixture
def builder(tmp_path: Path) -> RepositoryBuilder:
    builder = fixed_by_a_merge(tmp_path / "clone")
    set_clones([str(builder.place)])
    return builder
