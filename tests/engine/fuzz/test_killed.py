"""A campaign against vLLM that is killed by SIGKILL leaves no process behind, goes on, and has the
findings of one that was not killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pytest_vllm_regress.fuzz.campaign import JOURNAL
from tests.helpers import ROOT
from tests.helpers.environments import require_environment

pytestmark = [pytest.mark.engine, pytest.mark.slow]
ENDS_S = 60.0


def command(folder: Path) -> list[str]:
    pairs = [
        "--pair",
        "script",
        "--pair",
        "stream",
        "--examples",
        "25",
        "--seed",
        "1",
        "--limit",
        "seconds=10",
    ]
    return [
        sys.executable,
        "-m",
        "pytest_vllm_regress",
        "fuzz",
        "engines",
        "--env",
        "vllm-0.33.0",
        *pairs,
        "--out",
        str(folder),
    ]


def findings(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.glob("engines-*.json"))}


def labels(folder: Path) -> list[str]:
    lines = (folder / JOURNAL).read_text().splitlines()[1:]
    return [step["label"] for line in lines for step in json.loads(line).values()]


def test_a_killed_campaign_goes_on_with_the_same_findings(tmp_path: Path) -> None:
    require_environment("vllm-0.33.0")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(whole), cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    with subprocess.Popen(command(killed), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        next(
            line for line in process.stdout if "round 1, script" in line
        )  # the second pair begins now
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    assert children
    _, alive = psutil.wait_procs(children, timeout=ENDS_S)
    assert alive == []
    assert labels(killed) == ["script"]
    subprocess.run(command(killed), cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    assert labels(killed) == labels(whole) == ["script", "stream"]
    assert findings(killed) == findings(whole) != {}
