"""A made-up history that a fix was merged into."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.environments.sources import set_clones
from tests.helpers.histories import fixed_by_a_merge
from tests.helpers.repositories import RepositoryBuilder


@pytest.fixture(scope="package")
def original(tmp_path_factory: pytest.TempPathFactory) -> RepositoryBuilder:
    return fixed_by_a_merge(tmp_path_factory.mktemp("history") / "clone")


@pytest.fixture
def builder(original: RepositoryBuilder, tmp_path: Path) -> RepositoryBuilder:
    builder = original.copy(tmp_path / "clone")
    set_clones([str(builder.place)])
    return builder
