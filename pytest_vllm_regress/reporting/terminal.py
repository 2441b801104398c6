"""The end of a pytest run: one line per case and environment, and the result file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..cases.cells import cells
from ..cases.results import RunResult, TestResult, write
from ..cases.verdict import excerpt
from ..errors import RegressError


def lines(found: Sequence[TestResult]) -> list[str]:
    """One line per case and environment: the combined verdict, the device, and the reasons of what was not expected."""
    shown = []
    for cell in sorted(cells(found), key=lambda cell: (cell.case_id, cell.environment, cell.device)):
        counted = Counter(result.verdict for result in cell.results)
        counts = ", ".join(f"{count} {verdict.name}" for verdict, count in counted.items())
        simulated = " (simulated device)" if cell.device == "sim" else ""
        shown.append(
            f"{cell.verdict.name:19} {cell.case_id} on {cell.environment}, device {cell.device}{simulated}: {counts}"
        )
        faults: dict[tuple[str, str], list[str]] = {}
        for result in cell.results:
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
