"""The script for the first machine, rehearsed: a record whatever happens, each step with its outcome and reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.helpers import ROOT
from tests.helpers.gpu_standins import H100, MACHINES

from .test_run import Speak, speak  # noqa: F401  # a fixture

SCRIPT = ROOT / "benchmarks" / "gpu_first.py"


def first(record: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), f"--record={record}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_facts_and_failures_are_recorded(speak: Speak, fixed_target: Path, tmp_path: Path) -> None:  # noqa: F811
    speak(MACHINES["H100"])
    record = tmp_path / "record.json"
    done = first(record, f"--env={fixed_target}", "--only=facts,fork,tenant")
    steps = json.loads(record.read_text())["steps"]
    found = steps["facts"]["found"]
    assert found["machine"]["gpus"][0]["name"] == H100.name
    assert found["usage_ms"] > 0
    assert steps["fork"]["outcome"] == "failed"  # the stand-in for vLLM has no torch
    assert "No module named 'torch'" in steps["fork"]["why"]
    assert steps["tenant"]["why"].startswith("needs --torch")
    assert done.returncode == 1, done.stdout + done.stderr


def test_a_rehearsal_says_what_it_leaves_out(fixed_target: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    done = first(record, f"--env={fixed_target}", "--device=sim", "--only=fork,release,tenant")
    steps = json.loads(record.read_text())["steps"]
    assert {each["why"] for each in steps.values()} == {"needs CUDA; this is a rehearsal on sim"}
    assert done.returncode == 0, done.stdout + done.stderr
