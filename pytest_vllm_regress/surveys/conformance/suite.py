"""Run the conformance suite in one environment, in a pytest process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...errors import UsageError
from ...runner.pytest_run import pytest_command, pytest_environment, run_command
from ...util.paths import shipped
from ...util.rundir import scratch
from .record import SuiteRun, read_report

TIMEOUT_S = 300
GPU_TIMEOUT_S = 1800
"""The first start on a GPU compiles kernels."""
ON_GPU = ("--vllm-gpu", "--vllm-device=gpu")
"""Arguments of pytest that request real GPUs."""


def suite_directory() -> Path:
    """Return the directory of the suite: beside the package in a checkout, inside it when
    installed."""
    place = shipped("conformance")
    if place.is_dir():
        return place
    raise UsageError(
        "this installation has no conformance suite: use a checkout, or a wheel of pytest-vllm-regress"
    )


def asks_for_gpu(pytest_args: Sequence[str]) -> bool:
    """Return whether these arguments run the suite on GPUs."""
    return any(argument in ON_GPU for argument in pytest_args)


def run_suite(name: str, suite: Path, pytest_args: Sequence[str] = ()) -> SuiteRun:
    """Run the suite, or the part that ``pytest_args`` select, in one environment."""
    with scratch() as folder:
        report = folder / "report.xml"
        command = pytest_command(
            folder, suite, [suite], GPU_TIMEOUT_S if asks_for_gpu(pytest_args) else TIMEOUT_S
        )
        command += [f"--vllm-env={name}", f"--junitxml={report}", "--tb=short", *pytest_args]
        status = run_command(command, pytest_environment(folder))
        if not report.exists():
            raise UsageError(
                f"{name}: pytest ended with status {status} and wrote no report: see its output above"
            )
        return read_report(name, report)
