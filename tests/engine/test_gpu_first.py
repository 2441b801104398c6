"""The steps of benchmarks/gpu_first.py that need a real vLLM, rehearsed on the simulated device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.gpus.test_first import first, rehearsed

pytestmark = pytest.mark.engine


def test_cases_conformance_and_a_killed_core_are_rehearsed(
    tmp_path: Path, user_caches: None
) -> None:
    record = tmp_path / "record.json"
    options = ["--only=cases,conformance,core-killed", "--cases=lmfe-124", "--suite=test_async.py"]
    completed = first(record, "--env=vllm-0.8.5", "--device=sim", *options)
    steps = rehearsed(record)
    assert [step["outcome"] for step in steps.values()] == ["done"] * 3, record.read_text()
    assert {result["verdict"] for result in steps["cases"]["found"]["results"]} == {"FIXED"}
    suite = steps["conformance"]["found"]["suite"]
    assert (suite["device"], suite["versions"]["vllm"]) == ("sim", "0.8.5")
    assert "ok" in {cell["outcome"] for cell in suite["cells"]}
    assert completed.returncode == 0, completed.stdout + completed.stderr
