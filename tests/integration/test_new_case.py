"""What ``vllm-regress new`` leaves in an empty folder: ``ruff`` and ``pytest`` accept it."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.observation import FAILURES

FRONTS = ("offline", "async", "serve", "probe")
LONG = "words that go on and on for as long as nobody stops them, " * 3


def test_ruff_and_pytest_accept_new_cases(tmp_path: Path) -> None:
    kinds = [
        ["--front", front, "--kind", kind] for front, kind in itertools.product(FRONTS, FAILURES)
    ]
    kinds += [
        ["--front", "serve", "--kind", "crash", "--set", f"phase={p}"] for p in ("ready", "stop")
    ]
    environments = ["--affected-env", "vllm-0.8.4", "--fixed-env", "vllm-0.8.5"]
    for number, kind in enumerate(kinds, 1000):
        new = ["new", str(number), *kind, *environments, "--title", LONG.strip()]
        ids = ["--set", f"id=vllm-{number}-{'long-' * (number % 11)}name"]
        assert (
            cli.main(["--cases", str(tmp_path / "cases"), *new, *ids, "--affected", "<0.8.5"]) == 0
        )
    for command in (
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["pytest", "--collect-only", "-q"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    # Each test runs in both environments.
    assert f"{2 * len(kinds)} tests collected" in done.stdout
