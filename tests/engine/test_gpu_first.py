"""The steps of benchmarks/gpu_first.py that need a real vLLM, rehearsed on the simulated device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.gpus.test_first import entries, first, rehearsed

pytestmark = pytest.mark.engine


def test_cases_conformance_and_a_killed_core_are_rehearsed(
    tmp_path: Path, user_caches: None
) -> None:
    ledger = tmp_path / "ledger.jsonl"
    options = ["--only=cases,conformance,core-killed", "--cases=lmfe-124", "--suite=test_async.py"]
    completed = first(ledger, "--env=vllm-0.8.5", "--device=sim", "--jobs=2", *options)
    steps = rehearsed(ledger)
    assert [step["outcome"] for step in steps.values()] == ["done"] * 3, ledger.read_text()
    found = entries(ledger)
    tests = {name: entry["outcome"] for name, entry in found.items() if "lmfe-124" in name}
    assert tests and set(tests.values()) == {"FIXED"}
    checks = {name: entry["outcome"] for name, entry in found.items() if name.startswith("check")}
    assert "passed" in checks.values()
    assert completed.returncode == 0, completed.stdout + completed.stderr
