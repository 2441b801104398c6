"""The end of a pytest run: one line per case and environment, and the result file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..cases.results import RunResult, TestResult, write
from ..cases.verdict import combine, excerpt
from ..errors import RegressError


def lines(found: Sequence[TestResult]) -> list[str]:
    """One line per case and environment: the combined verdict, the device, and the reasons of what was not expected."""
    groups: dict[tuple[str, str, str], list[TestResult]] = {}
    for result in found:
        groups.setdefault((result.case_id, result.environment, result.device), []).append(result)
    shown = []
    for (case, environment, device), results in sorted(groups.items()):
        verdict = combine(r.verdict for r in results)
        counts = ", ".join(
            f"{sum(r.verdict is v for r in results)} {v.name}" for v in dict.fromkeys(r.verdict for r in results)
        )
        simulated = " (simulated device)" if device == "sim" else ""
        shown.append(f"{verdict.name:19} {case} on {environment}, device {device}{simulated}: {counts}")
        faults: dict[tuple[str, str], list[str]] = {}
        for result in results:
            if not result.expected:
                faults.setdefault((result.verdict.name, excerpt(result.reason)), []).append(result.test)
        for (name, reason), tests in faults.items():
            more = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
            shown.append(f"    {name} {tests[0]}{more}: {reason}")
    return shown


def write_report(file: Path, found: Sequence[TestResult]) -> None:
    """Write the result file of --vllm-report."""
    try:
        write(file, RunResult(tuple(found)))
    except RegressError as error:
        import pytest

        raise pytest.UsageError(str(error)) from None
