"""Running the conformance suite in one environment, with a pytest of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import UsageError
from ..runner.runner import pytest_command, pytest_environment, run_command
from ..util.paths import shipped
from ..util.rundir import scratch
from .record import SuiteRun, read_report

TIMEOUT_S = 300
GPU_TIMEOUT_S = 1800
"""On GPUs a first start compiles its kernels."""
ON_GPU = ("--vllm-gpu", "--vllm-device=gpu")
"""Arguments for pytest that ask for real GPUs."""


def suite_directory() -> Path:
    """The suite: beside the package in a checkout, in the package where it was installed."""
    place = shipped("conformance")
    if place.is_dir():
        return place
    raise UsageError("this installation has no conformance suite: use a checkout, or a wheel of pytest-vllm-regress")


def asks_for_gpu(pytest_args: Sequence[str]) -> bool:
    """Whether these arguments have the suite run on GPUs."""
    return any(each in ON_GPU for each in pytest_args)


def run_suite(name: str, suite: Path, pytest_args: Sequence[str] = ()) -> SuiteRun:
    """The whole suite in one environment, by a pytest of its own."""
    with scratch() as folder:
        report = folder / "report.xml"
        command = pytest_command(folder, suite, [suite], GPU_TIMEOUT_S if asks_for_gpu(pytest_args) else TIMEOUT_S)
        command += [f"--vllm-env={name}", f"--junitxml={report}", "--tb=short", *pytest_args]
        status = run_command(command, pytest_environment(folder))
        if not report.exists():
            raise UsageError(f"{name}: pytest ended with status {status} and wrote no report: see its output above")
        return read_report(name, report)
