"""What a verdict may look at: nothing from before, and who is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

from pytest_vllm_regress.errors import Part
from pytest_vllm_regress.processes.dossier import simulation_gap
from pytest_vllm_regress.processes.witness import MAX_CHARS, Witness


def test_only_what_was_written_since_counts_of_every_log(tmp_path: Path) -> None:
    log, ray = tmp_path / "log", tmp_path / "ray"
    raylet = ray / "session_1" / "logs" / "raylet.err"
    raylet.parent.mkdir(parents=True)
    log.write_text("prefix at start-up\n")
    raylet.write_text("an old worker\n")
    witness = Witness(log, ray)
    assert "prefix" in witness.log()
    witness.begin()
    assert witness.parts(exception="KeyError: 1") == {Part.EXCEPTION: "KeyError: 1"}
    with log.open("a") as more:
        more.write("ValueError: since\n")
    with raylet.open("a") as more:
        more.write("worker died\n")
    assert witness.log().split("\n") == ["ValueError: since", "worker died"]


def test_a_flood_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n" + "x" * 5_000_000 + "\nlast\n")
    text = Witness(log).log()
    assert text.startswith("first") and text.endswith("last") and len(text) <= MAX_CHARS


def test_an_engine_process_that_has_ended_is_named(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    witness = Witness(tmp_path / "log")
    assert not witness.has_engine
    witness.take([psutil.Process(process.pid)])
    assert witness.has_engine and witness.lost() == ()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # its parent has not asked yet
    (words,) = witness.lost()
    assert words.startswith(f"{process.pid} has ended: killed by SIGKILL (") and "time.sleep" in words
    process.wait()
    assert witness.lost() == (words,)  # nobody could tell any more
    assert witness.parts(exit="killed by SIGKILL")[Part.EXIT].startswith(
        f"killed by SIGKILL\nengine process {process.pid}"
    )


def test_gaps_of_the_simulated_device_are_read_in_words() -> None:
    said = "the simulated device of pytest-vllm-regress cannot serve vLLM 0.8.5: the runner 'pooling': the simulated device only generates"
    line = f"ERROR [core.py:1] vllm_regress_target.sim.compat.SimulationGap: {said}. Run this on another device (cpu or gpu), or extend it."
    assert simulation_gap(f"INFO\n{line}\nRuntimeError: see above") == said
    assert simulation_gap("RuntimeError: SimulationGap") == ""
