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


def suite_directory() -> Path:
    """The suite: beside the package in a checkout, in the package where it was installed."""
    place = shipped("conformance", "conformance")
    if place.is_dir():
        return place
    raise UsageError("this installation has no conformance suite: use a checkout, or a wheel of pytest-vllm-regress")


def run_suite(name: str, suite: Path, pytest_args: Sequence[str] = ()) -> SuiteRun:
    """The whole suite in one environment, by a pytest of its own."""
    with scratch() as folder:
        report = folder / "report.xml"
        command = pytest_command(folder, suite, [suite], TIMEOUT_S)
        command += [f"--vllm-env={name}", f"--junitxml={report}", "--tb=short", *pytest_args]
        status = run_command(command, pytest_environment(folder))
        if not report.exists():
            raise UsageError(f"{name}: pytest ended with status {status} and wrote no report: see its output above")
        return read_report(name, report)
