"""The script for the first machine with a GPU, rehearsed on stand-ins: its steps to the end, failures and gaps recorded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeTarget
from tests.helpers import ROOT, fake_gpus
from tests.helpers.fake_gpus import H100, MACHINES

from .test_run import Speak, speak  # noqa: F401  # a fixture

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "benchmarks" / "gpu_first.py"
ON_A_GPU = ("facts", "fork", "release", "core-killed", "pytest-killed", "tenant", "two-at-once")


def first(record: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script. Listed caches remain the user's; everything else is next to the record."""
    command = [sys.executable, str(SCRIPT), f"--record={record}", *arguments]
    environment = {"VLLM_REGRESS_CACHE": str(record.parent / "cache"), **os.environ}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)


def rehearsed(record: Path) -> dict[str, Any]:
    """Return the steps of a rehearsal, whose first line says that it is one."""
    text = record.read_text()
    assert text.splitlines()[1].startswith(' "rehearsal": "Nothing here was seen on a GPU: ')
    plain: dict[str, Any] = json.loads(text)
    assert "steps" not in plain
    steps: dict[str, Any] = plain["rehearsed"]
    return steps


@pytest.fixture(scope="module")
def engines(make_target: MakeTarget) -> Path:
    """Return an interpreter with stand-ins for torch and vLLM, whose engines hold memory of the NVML stand-in while they run."""
    python = make_target()
    (site,) = (python.parent.parent / "lib").glob("python3.*/site-packages")
    shutil.copytree(fake_gpus.HERE / "site", site, dirs_exist_ok=True)
    about = site / "vllm-0.22.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.22.1\n")
    return python


def test_every_gpu_step_completes(speak: Speak, engines: Path, tmp_path: Path) -> None:  # noqa: F811
    speak(MACHINES["H100"])
    record = tmp_path / "record.json"
    done = first(record, f"--env={engines}", f"--torch={engines}", f"--only={','.join(ON_A_GPU)}")
    steps = rehearsed(record)
    assert {name: step["outcome"] for name, step in steps.items()} == dict.fromkeys(ON_A_GPU, "done"), (
        record.read_text()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    facts = steps["facts"]["found"]
    assert facts["machine"]["gpus"][0]["name"] == H100.name
    assert facts["usage_ms"] > 0
    assert steps["fork"]["found"]["start_method"] == "fork"
    assert steps["fork"]["found"]["tensor"]["sum"] == 8
    freed = steps["release"]["found"]
    assert freed["held_mib"] - freed["before_mib"] == 4 * 1024
    assert freed["curve"][-1][1] == freed["before_mib"]


def test_failures_are_recorded_and_the_next_step_runs(speak: Speak, fixed_target: Path, tmp_path: Path) -> None:  # noqa: F811
    speak(MACHINES["H100"])
    record = tmp_path / "record.json"
    done = first(record, f"--env={fixed_target}", "--only=fork,tenant")
    steps = rehearsed(record)
    assert steps["fork"]["outcome"] == "failed"  # this stand-in for vLLM has no torch
    assert "No module named 'torch'" in steps["fork"]["why"]
    assert steps["tenant"] == {**steps["tenant"], "outcome": "left out"}
    assert steps["tenant"]["why"].startswith("needs --torch")
    assert done.returncode == 1, done.stdout + done.stderr


def test_steps_that_need_cuda_are_skipped_without_it(fixed_target: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    done = first(record, f"--env={fixed_target}", "--device=sim", "--only=fork,release")
    assert {step["why"] for step in rehearsed(record).values()} == {"needs CUDA; this is a rehearsal on sim"}
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("device", ["sim", "gpu"])
def test_a_rehearsal_is_not_written_to_the_records(device: str, speak: Speak, tmp_path: Path) -> None:  # noqa: F811
    speak(MACHINES["H100"])
    record = ROOT / "docs" / "records" / "gpu-rehearsal.json"
    done = first(record, "--env=x", f"--device={device}", "--only=facts")
    assert done.returncode == 2
    assert "this is a rehearsal" in done.stderr
    assert not record.exists()
