"""The log that counts for a verdict: nothing older than the window, and which processes ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil

from pytest_vllm_regress.cases.observation import Observation
from pytest_vllm_regress.engines.processes.child_processes import ChildProcesses, EngineProcesses
from pytest_vllm_regress.engines.processes.failures import ChildFacts, ChildFailures
from pytest_vllm_regress.engines.processes.logs import MAX_CHARS, LogWindow, simulation_gap
from pytest_vllm_regress.errors import Kind, Masked, Part


def test_only_text_written_since_the_restart_counts(tmp_path: Path) -> None:
    log, ray = tmp_path / "log", tmp_path / "ray"
    raylet = ray / "session_1" / "logs" / "raylet.err"
    raylet.parent.mkdir(parents=True)
    log.write_text("prefix at start-up\n")
    raylet.write_text("an old worker\n")
    log_window = LogWindow(log, ray)
    assert "prefix" in log_window.text()
    log_window.restart()
    assert log_window.text() == ""
    with log.open("a") as more:
        more.write("ValueError: since\n")
    with raylet.open("a") as more:
        more.write("worker died\n")
    assert log_window.text().split("\n") == ["ValueError: since", "worker died"]


def test_a_flood_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n" + "x" * 5_000_000 + "\nlast\n")
    text = LogWindow(log).text()
    assert text.startswith("first") and text.endswith("last") and len(text) <= MAX_CHARS


def test_the_first_of_several_nested_tracebacks_counts(tmp_path: Path) -> None:
    """Regression: the cause of a failed start was cut out of the middle of its log."""
    log = tmp_path / "log"
    filler = 'File "engine.py", line 1, in start\n' * 600
    log.write_text(f"{filler}RuntimeError: the cause\n{filler}RuntimeError: see above\n")
    observation = Observation(Kind.CRASH, "ready", "", {Part.LOG: LogWindow(log).text()})
    assert "RuntimeError: the cause" in observation.parts[Part.LOG]


def test_an_engine_process_that_has_ended_is_named(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    while "time.sleep" not in " ".join(
        psutil.Process(process.pid).cmdline()
    ):  # it is between fork and exec
        time.sleep(0.01)
    engine = EngineProcesses()
    assert not engine.adopted
    engine.adopt([psutil.Process(process.pid)])
    assert engine.adopted and engine.lost() == ()
    process.kill()
    os.waitid(
        os.P_PID, process.pid, os.WEXITED | os.WNOWAIT
    )  # its parent has not waited for it yet
    (words,) = engine.lost()
    assert (
        words.startswith(f"{process.pid} has ended: killed by SIGKILL (") and "time.sleep" in words
    )
    process.wait()
    assert engine.lost() == (words,)  # remembered: the exit status cannot be read again
    life = SimpleNamespace()
    failures = ChildFailures(
        ChildFacts("engine 1", tmp_path / "log"),
        cast(ChildProcesses, life),
        LogWindow(tmp_path / "log"),
        engine,
    )
    assert failures.parts(exception=Masked("KeyError: 1"), exit=Masked("killed by SIGKILL")) == {
        Part.EXCEPTION: "KeyError: 1",
        Part.EXIT: f"killed by SIGKILL\nengine process {words}",
    }


def test_gaps_of_the_simulated_device_are_read_from_the_log() -> None:
    gap = "the simulated device of pytest-vllm-regress cannot serve vLLM 0.8.5: the runner 'pooling': the simulated device only generates"
    line = f"ERROR [core.py:1] vllm_regress_target.dialect.signatures.SimulationGap: {gap}. Run this on another device (cpu or gpu), or extend it."
    assert simulation_gap(f"INFO\n{line}\nRuntimeError: see above") == gap
    assert simulation_gap("RuntimeError: SimulationGap") == ""
