"""The command that users run reproduces vllm-17173 on vLLM 0.8.4 and finds it fixed in 0.8.5."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_vllm_regress.cases import results
from pytest_vllm_regress.cases.verdict import Verdict, combine

pytestmark = pytest.mark.engine


def test_lost_results_are_reproduced_on_0_8_4_and_fixed_on_0_8_5(tmp_path: Path) -> None:
    environments = ["--env", "vllm-0.8.4", "--env", "vllm-0.8.5"]
    command = [
        sys.executable,
        "-m",
        "pytest_vllm_regress",
        "run",
        "vllm-17173",
        *environments,
        "--out",
        str(tmp_path),
    ]
    completed = subprocess.run(
        [*command, "--", "-k", "offline or async"], capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stdout[-4000:] + completed.stderr[-2000:]
    run = results.merge_results(results.read_results(file) for file in tmp_path.glob("*.json"))
    verdicts = {
        name: combine(r.verdict for r in run.results if r.environment == name)
        for name in ("vllm-0.8.4", "vllm-0.8.5")
    }
    assert verdicts == {"vllm-0.8.4": Verdict.REPRODUCED, "vllm-0.8.5": Verdict.FIXED}
    assert {r.device for r in run.results} == {"sim"}
