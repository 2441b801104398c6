"""The script for the first machine with a GPU, its faults rehearsed on the simulated device: killed engine cores, killed pytests, two at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.gpus.test_first import first

pytestmark = pytest.mark.engine


def test_faults_and_turns(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    done = first(record, "--env=vllm-0.8.5", "--device=sim", "--only=core-killed,pytest-killed,two-at-once")
    outcomes = {name: each["outcome"] for name, each in json.loads(record.read_text())["steps"].items()}
    assert outcomes == dict.fromkeys(("core-killed", "pytest-killed", "two-at-once"), "done"), record.read_text()
    assert done.returncode == 0
