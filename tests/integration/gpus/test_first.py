"""The script for the first machine with a GPU, rehearsed on stand-ins: its steps to the end, failures and gaps ledgered."""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_ledger
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


def first(ledger: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script. Listed caches remain the user's; everything else is next to the ledger."""
    command = [sys.executable, str(SCRIPT), f"--ledger={ledger}", *arguments]
    environment = {"VLLM_REGRESS_CACHE": str(ledger.parent / "cache"), **os.environ}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env=environment
    )


def entries(ledger: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of a rehearsal's ledger, by what was run. Its first line says what it is."""
    head, *lines = map(json.loads, ledger.read_text().splitlines())
    assert head["key"].startswith("Nothing here was seen on a GPU: ")
    return {name.split(" | ")[0]: entry for line in lines for name, entry in line.items()}


def rehearsed(ledger: Path) -> dict[str, dict[str, Any]]:
    """Return the steps of a rehearsal."""
    return {
        name.removeprefix("step "): entry
        for name, entry in entries(ledger).items()
        if name.startswith("step ")
    }


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
    ledger = tmp_path / "ledger.jsonl"
    done = first(ledger, f"--env={engines}", f"--only={','.join(ON_A_GPU)}")
    steps = rehearsed(ledger)
    assert {name: step["outcome"] for name, step in steps.items()} == dict.fromkeys(
        ON_A_GPU, "done"
    ), ledger.read_text()
    assert done.returncode == 0, done.stdout + done.stderr
    facts = steps["facts"]["facts"]
    assert facts["machine"]["gpus"][0]["name"] == H100.name
    assert facts["usage_ms"] > 0
    assert steps["fork"]["facts"]["start_method"] == "fork"
    assert steps["fork"]["facts"]["tensor"]["sum"] == 8
    freed = steps["release"]["facts"]
    assert freed["held_mib"] - freed["before_mib"] == 4 * 1024
    assert freed["curve"][-1][1] == freed["before_mib"]


@pytest.mark.parametrize("name", ["T4", "L4", "A100"])
def test_it_adapts_to_the_gpu(name: str, speak: Speak, engines: Path, tmp_path: Path) -> None:
    speak(MACHINES[name])
    ledger = tmp_path / "ledger.jsonl"
    done = first(ledger, f"--env={engines}", "--only=facts,first-start,fork,release,tenant")
    steps = rehearsed(ledger)
    assert {step["outcome"] for step in steps.values()} == {"done"}, ledger.read_text()
    assert done.returncode == 0, done.stdout + done.stderr
    total = MACHINES[name].cards[0].total // MIB
    assert steps["facts"]["facts"]["used"]["memory"] == total * MIB
    tenant = steps["tenant"]["facts"]
    assert tenant["tenant_mib"] + 4096 <= tenant["free_mib"] <= total, (
        "an engine has room beside the tenant"
    )


def test_on_mig_it_uses_a_slice_and_leaves_out_what_this_vllm_cannot(
    speak: Speak,
    engines: Path,
    tmp_path: Path,
) -> None:
    speak(MACHINES["MIG"])
    ledger = tmp_path / "ledger.jsonl"
    done = first(ledger, f"--env={engines}", "--only=facts,first-start,fork,tenant")
    steps = rehearsed(ledger)
    assert steps["facts"]["facts"]["used"] == {
        **steps["facts"]["facts"]["used"],
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
    assert "a MIG slice has none" in steps["first-start"]["text"]
    assert steps["tenant"]["text"] == steps["first-start"]["text"]
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
    where = gpu_ledger.Where(str(tmp_path / "ledger.jsonl"), "0.0", "none")
    bench = script["Bench"]("env", "sim", None, tmp_path, 0.0, where)
    assert (
        script["step"](bench, script["Step"](lambda _: found, minutes=1), 60.0)["outcome"]
        == outcome
    )


@pytest.mark.parametrize("killed_after", [0, 1, 17, 38])
def test_a_run_that_is_killed_loses_nothing_and_the_next_one_goes_on(
    killed_after: int, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "test_many.py").write_text(
        f"import pytest\n@pytest.mark.parametrize('number', range(40))\n"
        f"def test_one(number):\n    with open({str(ran)!r}, 'a') as file: file.write(f'{{number}}\\n')\n"
    )
    where = gpu_ledger.Where(str(tmp_path / "ledger.jsonl"), "0.26.0", "a GPU", "rehearsed")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.gpu_ledger"]
    command += ["-p", "no:cacheprovider", str(tmp_path / "test_many.py")]
    environment = {**os.environ, gpu_ledger.WHERE: json.dumps(dataclasses.asdict(where))}
    ledger = Path(where.path)
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and kept(ledger) < killed_after:
            time.sleep(0.001)  # another process writes the file
        process.kill()
    before = kept(ledger)
    begun = len(ran.read_text().split()) if ran.exists() else 0
    assert begun - before <= 1, "a test that has ended is in the ledger"
    again = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert again.returncode == (5 if before == 40 else 0), again.stdout
    assert len(where.open()) == 40
    assert len(ran.read_text().split()) == 40 + begun - before


def kept(ledger: Path) -> int:
    """Return how many entries are complete in a ledger that is being written."""
    return max(0, ledger.read_bytes().count(b"\n") - 1) if ledger.exists() else 0


def test_what_says_nothing_about_the_release_is_run_again(tmp_path: Path) -> None:
    ledger = gpu_ledger.Where(str(tmp_path / "ledger.jsonl"), "0.26.0", "a GPU").open()
    for outcome in ("FIXED", "passed", "failed", "INCONCLUSIVE", "cut off"):
        ledger.add(outcome, gpu_ledger.entry(outcome, "", 1.0, {}))
    assert [name for name in ledger if gpu_ledger.is_known(ledger, name)] == ["FIXED", "passed"]


def test_a_gpu_that_is_too_old_ends_it_before_the_first_step(
    speak: Speak, engines: Path, tmp_path: Path
) -> None:
    speak(Machine((Card("Tesla K80", 11441 * 2**20, "3.7"),)))
    done = first(tmp_path / "ledger.jsonl", f"--env={engines}")
    assert done.returncode == 2
    assert "nothing was run: " in done.stderr and "compute capability 3.7" in done.stderr
    assert not (tmp_path / "ledger.jsonl").exists()


def test_a_necessary_step_without_time_is_an_error(
    speak: Speak, engines: Path, tmp_path: Path
) -> None:
    speak(MACHINES["T4"])
    ledger = tmp_path / "ledger.jsonl"
    done = first(ledger, f"--env={engines}", "--minutes=0.2", "--only=facts,first-start,release")
    steps = rehearsed(ledger)
    assert steps["first-start"]["text"].startswith("it needs 60 s, and ")
    assert "necessary, and left out or cut off: first-start" in done.stdout
    assert done.returncode == 1, done.stdout + done.stderr


def test_failures_are_ledgered_and_the_next_step_runs(
    speak: Speak, fixed_target: Path, tmp_path: Path
) -> None:
    speak(MACHINES["H100"])
    ledger = tmp_path / "ledger.jsonl"
    done = first(ledger, f"--env={fixed_target}", "--only=fork,tenant")
    steps = rehearsed(ledger)
    assert steps["fork"]["outcome"] == "failed"  # this stand-in for vLLM has no torch
    assert "No module named 'torch'" in steps["fork"]["text"]
    assert steps["tenant"]["outcome"] == "failed"
    assert steps["tenant"]["text"].startswith("RuntimeError: the tenant ended with 1")
    assert done.returncode == 1, done.stdout + done.stderr


def test_without_a_first_engine_no_other_is_tried(
    speak: Speak, fixed_target: Path, tmp_path: Path
) -> None:
    speak(MACHINES["H100"])
    ledger = tmp_path / "ledger.jsonl"
    done = first(ledger, f"--env={fixed_target}", "--only=first-start,core-killed,release")
    steps = rehearsed(ledger)
    assert steps["first-start"]["outcome"] == "failed"
    assert steps["core-killed"]["outcome"] == "left out"
    assert steps["core-killed"]["text"] == "first-start failed"
    assert "first-start" not in steps["release"]["text"], "it needs no engine"
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.parametrize(("only", "status"), [("fork,release", 1), ("release", 0)])
def test_a_step_that_cannot_run_is_an_error_if_it_is_necessary(
    only: str, status: int, fixed_target: Path, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger.jsonl"
    done = first(ledger, f"--env={fixed_target}", "--device=sim", f"--only={only}")
    assert {step["text"] for step in rehearsed(ledger).values()} == {
        "needs CUDA; this is a rehearsal on sim"
    }
    assert done.returncode == status, done.stdout + done.stderr


@pytest.mark.parametrize("device", ["sim", "gpu"])
def test_a_rehearsal_is_not_written_to_the_records(
    device: str, speak: Speak, tmp_path: Path
) -> None:
    speak(MACHINES["H100"])
    ledger = ROOT / "docs" / "records" / "gpu-rehearsal.jsonl"
    done = first(ledger, "--env=x", f"--device={device}", "--only=facts")
    assert done.returncode == 2
    assert "this is a rehearsal" in done.stderr
    assert not ledger.exists()
