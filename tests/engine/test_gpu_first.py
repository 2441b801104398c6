"""The script for the first machine with a GPU: the steps that want a real vLLM, rehearsed on the simulated device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.gpus.test_first import first, rehearsed

pytestmark = pytest.mark.engine


def test_cases_conformance_and_a_killed_core(tmp_path: Path, user_caches: None) -> None:
    record = tmp_path / "record.json"
    some = ["--only=cases,conformance,core-killed", "--cases=lmfe-124", "--suite=test_async.py"]
    done = first(record, "--env=vllm-0.8.5", "--device=sim", *some)
    steps = rehearsed(record)
    assert [each["outcome"] for each in steps.values()] == ["done"] * 3, record.read_text()
    assert {each["verdict"] for each in steps["cases"]["found"]["results"]} == {"FIXED"}
    suite = steps["conformance"]["found"]["suite"]
    assert (suite["device"], suite["versions"]["vllm"]) == ("sim", "0.8.5")
    assert "ok" in {cell["outcome"] for cell in suite["cells"]}
    assert done.returncode == 0, done.stdout + done.stderr
