"""A made-up history that a fix was merged into."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.environments.sources import use
from tests.helpers.histories import mended_by_a_merge
from tests.helpers.repositories import Maker


@pytest.fixture
def made(tmp_path: Path) -> Maker:
    made = mended_by_a_merge(tmp_path / "clone")
    use([str(made.place)])
    return made
