"""The script for the first machine with a GPU, rehearsed on stand-ins: its steps to the end, failures and gaps recorded."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeTarget
from tests.helpers import ROOT, fake_gpus
from tests.helpers.fake_gpus import H100, MACHINES, Card, Machine

from .test_run import Speak, speak  # noqa: F401  # a fixture

pytestmark = pytest.mark.slow

MIB = 2**20
SCRIPT = ROOT / "benchmarks" / "gpu_first.py"
ON_A_GPU = (
    "facts",
    "first-start",
    "fork",
    "core-killed",
    "pytest-killed",
    "release",
    "tenant",
    "two-at-once",
)


def first(record: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script. Listed caches remain the user's; everything else is next to the record."""
    command = [sys.executable, str(SCRIPT), f"--record={record}", *arguments]
    environment = {"VLLM_REGRESS_CACHE": str(record.parent / "cache"), **os.environ}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env=environment
    )


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


def test_every_gpu_step_completes(speak: Speak, engines: Path, tmp_path: Path) -> None:
    speak(MACHINES["H100"])
    record = tmp_path / "record.json"
    done = first(record, f"--env={engines}", f"--only={','.join(ON_A_GPU)}")
    steps = rehearsed(record)
    assert {name: step["outcome"] for name, step in steps.items()} == dict.fromkeys(
        ON_A_GPU, "done"
    ), record.read_text()
    assert done.returncode == 0, done.stdout + done.stderr
    facts = steps["facts"]["found"]
    assert facts["machine"]["gpus"][0]["name"] == H100.name
    assert facts["usage_ms"] > 0
    assert steps["fork"]["found"]["start_method"] == "fork"
    assert steps["fork"]["found"]["tensor"]["sum"] == 8
    freed = steps["release"]["found"]
    assert freed["held_mib"] - freed["before_mib"] == 4 * 1024
    assert freed["curve"][-1][1] == freed["before_mib"]
    limits = [step["limit_s"] for step in steps.values()]
    assert limits == sorted(limits), "time that a step leaves goes to the next one"


@pytest.mark.parametrize("name", ["T4", "L4", "A100"])
def test_it_adapts_to_the_gpu(name: str, speak: Speak, engines: Path, tmp_path: Path) -> None:
    speak(MACHINES[name])
    record = tmp_path / "record.json"
    done = first(record, f"--env={engines}", "--only=facts,first-start,fork,release,tenant")
    steps = rehearsed(record)
    assert {step["outcome"] for step in steps.values()} == {"done"}, record.read_text()
    assert done.returncode == 0, done.stdout + done.stderr
    total = MACHINES[name].cards[0].total // MIB
    assert steps["facts"]["found"]["used"]["memory"] == total * MIB
    tenant = steps["tenant"]["found"]
    assert tenant["tenant_mib"] + 4096 <= tenant["free_mib"] <= total, (
        "an engine has room beside the tenant"
    )


def test_on_mig_it_uses_a_slice_and_leaves_out_what_this_vllm_cannot(
    speak: Speak,
    engines: Path,
    tmp_path: Path,
) -> None:
    speak(MACHINES["MIG"])
    record = tmp_path / "record.json"
    done = first(record, f"--env={engines}", "--only=facts,first-start,fork,tenant")
    steps = rehearsed(record)
    assert steps["facts"]["found"]["used"] == {
        **steps["facts"]["found"]["used"],
        "memory": 10 * 2**30,
        "part": True,
    }
    outcomes = {name: step["outcome"] for name, step in steps.items()}
    assert outcomes == {
        "facts": "done",
        "first-start": "left out",
        "fork": "done",
        "tenant": "left out",
    }
    assert "a MIG slice has none" in steps["first-start"]["why"]
    assert steps["tenant"]["why"] == steps["first-start"]["why"]
    assert "necessary, and left out or cut off: first-start" in done.stdout
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.parametrize("minutes", [10, 25, 60])
@pytest.mark.parametrize("used", [0.1, 1.0])
def test_the_limits_of_steps_add_up_to_the_minutes(minutes: float, used: float) -> None:
    script = runpy.run_path(str(SCRIPT))
    steps, spent = script["STEPS"], [0.0]
    assert sum(step.minutes for step in steps.values()) == script["PLANNED_MINUTES"]
    necessary = [step.necessary for step in steps.values()]
    assert necessary == sorted(necessary, reverse=True), "the necessary ones are first"
    for name, limit_s in script["limits"](tuple(steps), lambda: 60 * minutes - sum(spent), minutes):
        share = 60 * steps[name].minutes * minutes / script["PLANNED_MINUTES"]
        assert limit_s >= share - 1e-6 and (minutes < 25 or limit_s >= steps[name].least_s)
        spent.append(used * limit_s)
    assert sum(spent) <= 60 * minutes + 1e-6


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        ({"status": 0}, "done"),
        ({"status": 0, "cut_off": True}, "cut off"),
        ({"status": 2, "cut_off": True}, "failed"),
    ],
)
def test_a_suite_that_was_cut_off_is_not_done(
    found: dict[str, Any], outcome: str, tmp_path: Path
) -> None:
    script = runpy.run_path(str(SCRIPT))
    bench = script["Bench"]("env", "sim", None, tmp_path, until=0.0)
    assert (
        script["step"](bench, script["Step"](lambda _: found, minutes=1), 60.0)["outcome"]
        == outcome
    )


@pytest.mark.parametrize("cut_off", [True, False])
def test_verdicts_of_cases_are_kept_when_time_runs_out(cut_off: bool, tmp_path: Path) -> None:
    script = runpy.run_path(str(SCRIPT))

    class OneCase(script["Bench"]):  # type: ignore[misc, valid-type, name-defined]
        def run(self, *arguments: str) -> dict[str, Any]:
            result = {
                "case_id": "a",
                "test": "a::test",
                "verdict": "REPRODUCED",
                "reason": "",
                "gpu": None,
            }
            (self.folder / "cases.json").write_text(json.dumps({"results": [result]}))
            return {"status": 2, "cut_off": cut_off}

    bench = OneCase("env", "sim", None, tmp_path, until=0.0, cases=("a", "b"))
    entry = script["step"](bench, script["Step"](script["cases"], minutes=1), 60.0)
    assert entry["outcome"] == "failed"
    if cut_off:
        assert [result["verdict"] for result in entry["found"]["results"]] == ["REPRODUCED"]
        assert entry["found"]["not_run"] == ["b"]
    else:
        assert "no verdict for b" in entry["why"]


def test_a_gpu_that_is_too_old_ends_it_before_the_first_step(
    speak: Speak, engines: Path, tmp_path: Path
) -> None:
    speak(Machine((Card("Tesla K80", 11441 * 2**20, "3.7"),)))
    done = first(tmp_path / "record.json", f"--env={engines}")
    assert done.returncode == 2
    assert "nothing was run: " in done.stderr and "compute capability 3.7" in done.stderr
    assert not (tmp_path / "record.json").exists()


def test_a_necessary_step_without_time_is_an_error(
    speak: Speak, engines: Path, tmp_path: Path
) -> None:
    speak(MACHINES["T4"])
    record = tmp_path / "record.json"
    done = first(record, f"--env={engines}", "--minutes=0.2", "--only=facts,first-start,release")
    steps = rehearsed(record)
    assert steps["first-start"]["why"].startswith("it needs 60 s, and ")
    assert "necessary, and left out or cut off: first-start" in done.stdout
    assert done.returncode == 1, done.stdout + done.stderr


def test_failures_are_recorded_and_the_next_step_runs(
    speak: Speak, fixed_target: Path, tmp_path: Path
) -> None:
    speak(MACHINES["H100"])
    record = tmp_path / "record.json"
    done = first(record, f"--env={fixed_target}", "--only=fork,tenant")
    steps = rehearsed(record)
    assert steps["fork"]["outcome"] == "failed"  # this stand-in for vLLM has no torch
    assert "No module named 'torch'" in steps["fork"]["why"]
    assert steps["tenant"]["outcome"] == "failed"
    assert steps["tenant"]["why"].startswith("RuntimeError: the tenant ended with 1")
    assert done.returncode == 1, done.stdout + done.stderr


def test_without_a_first_engine_no_other_is_tried(
    speak: Speak, fixed_target: Path, tmp_path: Path
) -> None:
    speak(MACHINES["H100"])
    record = tmp_path / "record.json"
    done = first(record, f"--env={fixed_target}", "--only=first-start,core-killed,release")
    steps = rehearsed(record)
    assert steps["first-start"]["outcome"] == "failed"
    assert steps["core-killed"] == {
        "outcome": "left out",
        "why": "first-start failed",
        "seconds": 0.0,
    }
    assert "first-start" not in steps["release"]["why"], "it needs no engine"
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.parametrize(("only", "status"), [("fork,release", 1), ("release", 0)])
def test_a_step_that_cannot_run_is_an_error_if_it_is_necessary(
    only: str, status: int, fixed_target: Path, tmp_path: Path
) -> None:
    record = tmp_path / "record.json"
    done = first(record, f"--env={fixed_target}", "--device=sim", f"--only={only}")
    assert {step["why"] for step in rehearsed(record).values()} == {
        "needs CUDA; this is a rehearsal on sim"
    }
    assert done.returncode == status, done.stdout + done.stderr


@pytest.mark.parametrize("device", ["sim", "gpu"])
def test_a_rehearsal_is_not_written_to_the_records(
    device: str, speak: Speak, tmp_path: Path
) -> None:
    speak(MACHINES["H100"])
    record = ROOT / "docs" / "records" / "gpu-rehearsal.json"
    done = first(record, "--env=x", f"--device={device}", "--only=facts")
    assert done.returncode == 2
    assert "this is a rehearsal" in done.stderr
    assert not record.exists()
